"""Requests in flight, and the callers that wait for the answer of each."""

from __future__ import annotations

from enum import Enum, auto

from scheduler.daemon.cache.classes import CacheClass
from scheduler.daemon.cache.near import Blocks
from scheduler.daemon.submission import Submission


class Stage(Enum):
    """The stage of a flight."""

    LOOKING = auto()
    """Looking the answer up in Redis."""
    CLAIMING = auto()
    """Redis had no answer; trying to claim the request, unless another box has."""
    WAITING = auto()
    """Another box has claimed the request; waiting for its answer."""
    READING_AGAIN = auto()
    """The other box has written something; reading it."""
    DUE = auto()
    """Goes to the driver in the next turn of the loop."""
    RUNNING = auto()
    """The driver has it."""
    ENDED = auto()
    """Every caller was answered, or continues in a flight of its own."""


class Held:
    """A request that the cache will answer, or has passed on.

    Attributes:
        id: Its id for `cancel`; negative.
        submission: The request.
        arrived_ns: When it arrived.
        flight: The flight that it waits for; None once it is answered.
    """

    __slots__ = ("arrived_ns", "flight", "id", "submission")

    def __init__(self, id_: int, submission: Submission, arrived_ns: int) -> None:
        """Belongs to no flight yet."""
        self.id = id_
        self.submission = submission
        self.arrived_ns = arrived_ns
        self.flight: Flight | None = None


class Flight:
    """One execution shared by all callers of the same request.

    Attributes:
        kind: The cache class of the request.
        key: Its key.
        leader: The caller whose submission runs; None once it went away while others still wait.
        submission: The submission that runs.
        followers: The other callers that get its answer, in order of arrival.
        stage: Its stage.
        driver_id: The driver's id for it, once it runs.
        claimed: Whether this box holds the claim, so that other boxes may wait for it.
        blocks: The frame's block means, if near frames count.
    """

    __slots__ = (
        "blocks", "claimed", "driver_id", "followers", "key", "kind", "leader", "stage",
        "submission",
    )  # fmt: skip

    def __init__(self, kind: CacheClass, key: bytes, leader: Held, blocks: Blocks | None) -> None:
        """Due, without followers."""
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

        It would lose if this one has a later deadline, a lower priority or weight, may run past its
        deadline, or allows its inputs to be shrunk, where the other does not.
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
        """Adds a request that waits for this flight's answer."""
        held.submission.body = self.submission.body  # the same bytes, kept once
        held.flight = self
        self.followers.append(held)

    def remove(self, held: Held) -> None:
        """Removes a caller that no longer waits.

        A leader's submission keeps running: it serves all followers, while no other one need do so.
        """
        if held is self.leader:
            self.leader = None
        else:
            self.followers.remove(held)

    @property
    def callers(self) -> list[Held]:
        """All waiting callers, the leader first."""
        return ([] if self.leader is None else [self.leader]) + self.followers
