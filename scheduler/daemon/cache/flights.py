"""Questions under way, and who waits for the answer of each."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from scheduler.daemon.cache.classes import CacheClass
from scheduler.daemon.cache.near import Blocks
from scheduler.daemon.submission import Answer, Submission


class Stage(Enum):
    """How far a flight has come."""

    LOOKING = auto()
    """Redis is asked for the answer."""
    CLAIMING = auto()
    """Redis had none, and is asked whether another box is at it."""
    WAITING = auto()
    """Another box is."""
    READING_AGAIN = auto()
    """The other box has written something."""
    DUE = auto()
    """It goes to the driver with the next turn of the loop."""
    RUNNING = auto()
    """The driver has it."""
    ENDED = auto()
    """Everybody was answered, or has gone on alone."""


class Held:
    """A request that the cache will answer, or has sent on.

    Attributes:
        id: What `cancel` names it by; below 0.
        submission: What was asked.
        reply: Where its answer goes, once.
        arrived_ns: When it was asked.
        flight: What it waits for.
    """

    __slots__ = ("arrived_ns", "flight", "id", "reply", "submission")

    def __init__(self, id_: int, submission: Submission, arrived_ns: int) -> None:
        """Waits for nothing yet."""
        self.id = id_
        self.submission = submission
        self.reply: Callable[[Answer], None] = submission.reply
        self.arrived_ns = arrived_ns
        self.flight: Flight | None = None


class Flight:
    """One question, asked once for all who want to know.

    Attributes:
        kind: What is known of such questions.
        key: Its name.
        leader: Whose submission runs; None once that caller went away while others still wait.
        submission: What runs.
        followers: Who else gets its answer, in the order in which they came.
        stage: How far it is.
        driver_id: The driver's id for it, once it runs.
        claimed: Whether other boxes may wait for this one.
        blocks: The frame's block means, where near frames count.
    """

    __slots__ = (
        "blocks", "claimed", "driver_id", "followers", "key", "kind", "leader", "stage",
        "submission",
    )  # fmt: skip

    def __init__(self, kind: CacheClass, key: bytes, leader: Held, blocks: Blocks | None) -> None:
        """Due, with nobody behind the leader."""
        self.kind = kind
        self.key = key
        self.leader: Held | None = leader
        self.submission = leader.submission
        self.followers: list[Held] = []
        self.stage = Stage.DUE
        self.driver_id = 0
        self.claimed = False
        self.blocks = blocks
        leader.flight = self

    def serves(self, other: Submission) -> bool:
        """Whether another request loses nothing by waiting for this one.

        It would where this one may be served later than the other could: a later deadline,
        lower priority or weight, a run that goes on after the deadline, or inputs that may be
        made smaller.
        """
        own = self.submission
        return (
            own.deadline_ns <= other.deadline_ns
            and own.priority <= other.priority
            and own.weight >= other.weight
            and (other.accept_late or not own.accept_late)
            and (own.kind.exact or not other.kind.exact)
        )

    def add(self, held: Held) -> None:
        """Lets a request wait for this one's answer."""
        held.submission.body = self.submission.body  # the same bytes, held once
        held.flight = self
        self.followers.append(held)

    def remove(self, held: Held) -> None:
        """Takes out one who no longer waits.

        What a leader asked for still stands: it serves all the others. No other one need do that.
        """
        if held is self.leader:
            self.leader = None
        else:
            self.followers.remove(held)

    @property
    def callers(self) -> list[Held]:
        """All who wait, the leader first."""
        return ([] if self.leader is None else [self.leader]) + self.followers
