"""The two ends of every way to a target: what the driver asks of one, and what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.ending import end_tasks
from scheduler.daemon.submission import Submission
from workers.link import ModelCard, Packed

RESTART_NS = 3_000_000_000
"""How long a lost worker is expected to be away, until it has been seen to come back."""


class Ran(NamedTuple):
    """What ran a batch at a target that has devices of its own.

    Attributes:
        device: Which of them.
        runtime: What runs the variant there.
        batch: With how many others, itself included.
    """

    device: str
    runtime: str
    batch: int


class TargetLink(Protocol):
    """The scheduler's end of the way to one target. It lives on the scheduler's event loop."""

    async def keep_connected(self) -> None:
        """Connects, and again whenever the target was lost, until cancelled."""

    def run(self, dispatch: Dispatch, batch: Sequence[Submission]) -> None:
        """Sends a batch; exactly one of the listener's words about the run follows.

        Args:
            dispatch: The command to carry out.
            batch: The requests, in the order of the command's ids.
        """

    def cancel(self, run_id: int) -> None:
        """Nobody waits for a run any more; that it is over is still to be said."""

    def measure_again(self, offer: Offer, refused: Submission) -> None:
        """Has what was offered, and the way there, measured anew, with inputs made for that.

        Args:
            offer: What to measure.
            refused: The request for whose like it is to be known.
        """

    def close(self) -> None:
        """Hangs up."""

    def describe(self) -> dict[str, Any]:
        """What `status` says of the way there, for people and programs."""


@dataclass(slots=True)
class Way:
    """A link to a target, and what it has said.

    Attributes:
        link: The link.
        task: What keeps it connected.
        progress: How far the target is with getting ready: done, total, and what it does.
        transfer_ns: As in `TargetSpec`, where a device is not on this box.
        lost_ns: Since when it is away; None while it is not.
        away_ns: For how long it was the last time; but no more than twice as long as was thought
            then, or `RESTART_NS`.
        telemetry: What the device does, uses and draws.
    """

    link: TargetLink
    task: asyncio.Task[None]
    progress: tuple[int, int, str] = (0, 0, "starting")
    transfer_ns: tuple[int, float] = (0, 0.0)
    lost_ns: int | None = None
    away_ns: int = RESTART_NS
    telemetry: dict[str, Any] = field(default_factory=dict)

    async def close(self) -> None:
        """Hangs up, for good."""
        await end_tasks([self.task])
        self.link.close()

    def describe(self) -> dict[str, Any]:
        """What is known of the way, and how the target is."""
        progress = dict(zip(("done", "total", "text"), self.progress, strict=True))
        return {**self.link.describe(), "progress": progress, "telemetry": self.telemetry}


class LinkListener(Protocol):
    """Who hears what links say. A link that has not said `on_up` or `on_offer` is not used."""

    def on_catalog(
        self, target_id: str, cards: list[ModelCard], problems: list[Any], own: bool = True
    ) -> None:
        """The models that are there, and those that can't be served.

        Args:
            target_id: Who says so.
            cards: The models.
            problems: The others, and why.
            own: Whether they are this box's own files, whose word on a model goes before others'.
        """

    def on_offer(self, target_id: str, offer: Offer) -> None:
        """A device of this box has a variant loaded, warm and measured."""

    def on_way(self, target_id: str, transfer_ns: tuple[int, float]) -> None:
        """How long a batch takes to a device: for the message, and for each byte."""

    def on_handover(self, target_id: str, handover_ns: int) -> None:
        """How long a device stands idle where a batch is sent once the one before it is back."""

    def on_up(self, spec: TargetSpec) -> None:
        """A target is ready; it runs nothing."""

    def on_changed(self, spec: TargetSpec, closed_ns: int = 0) -> None:
        """A target that is up is different from now on; see `TargetChanged`."""

    def on_lost(self, target_id: str, reason: str, blameless: bool = False) -> None:
        """A target is gone, and with it all that it was running; see `TargetDown`.

        Args:
            target_id: Which one.
            reason: Why, for people.
            blameless: Whether no request can have been the cause.
        """

    def on_done(
        self,
        run_id: int,
        results: list[Packed | str],
        execute_ns: int,
        notes: Mapping[str, Any] | None = None,
        ran: Ran | None = None,
    ) -> None:
        """A run came back.

        Args:
            run_id: Which one.
            results: Packed outputs, or an error, per item.
            execute_ns: How long the batch ran.
            notes: What callers should know of how these results came about.
            ran: What ran it, where the target is not itself the device.
        """

    def on_not_run(self, run_id: int, reason: str) -> None:
        """A run was refused or skipped; nothing was tried."""

    def on_failed(self, run_id: int, reason: str) -> None:
        """A run was tried and came to nothing."""

    def on_progress(self, target_id: str, done: int, total: int, text: str) -> None:
        """How far a target is with getting ready."""

    def on_telemetry(self, target_id: str, reading: dict[str, Any]) -> None:
        """What a device does, uses and draws."""
