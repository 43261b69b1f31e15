"""The interface between the driver and its links to targets, in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.asyncio_tasks import end_tasks
from scheduler.daemon.submission import Submission
from workers.link import ModelCard, Packed

RESTART_NS = 3_000_000_000
"""Expected absence of a lost worker, until one return has been observed."""


class Ran(NamedTuple):
    """The device that ran a batch at a target with several devices.

    Attributes:
        device: The target's device.
        runtime: The runtime of the variant there.
        batch: Size of the batch there, including this request.
        digest: That of the model's files there; empty if it is unknown.
    """

    device: str
    runtime: str
    batch: int
    digest: str


class TargetLink(Protocol):
    """The scheduler's end of the link to one target. It lives on the scheduler's event loop."""

    async def keep_connected(self) -> None:
        """Connects, and reconnects whenever the target is lost, until cancelled."""

    def run(self, dispatch: Dispatch, batch: Sequence[Submission]) -> None:
        """Sends a batch; exactly one call of the listener about the run follows.

        Args:
            dispatch: The command to carry out.
            batch: The requests, in the order of the command's ids.
        """

    def cancel(self, run_id: int) -> None:
        """Nobody waits for a run any more; the listener must still hear of its end."""

    def measure_again(self, offer: Offer, refused: Submission) -> None:
        """Has an offer, and the way to its target, measured again with synthetic inputs.

        Args:
            offer: The offer to measure.
            refused: The refused request; requests like it need the measurement.
        """

    def close(self) -> None:
        """Hangs up."""

    def describe(self) -> dict[str, Any]:
        """The link's part of `status`, for people and programs."""


@dataclass(slots=True)
class LinkedTarget:
    """A target that the driver has a link to, and what the link has reported of it.

    Attributes:
        link: The link.
        task: The task that keeps it connected.
        progress: The target's progress in becoming ready: done, total, and the current step.
        transfer_ns: As in `TargetSpec`, for a device that is not on this box.
        lost_ns: When the target was lost; None while it is there.
        away_ns: How long its last absence was, capped at the larger of `RESTART_NS` and twice the
            previous value.
        telemetry: The device's load, memory, power and the like.
    """

    link: TargetLink
    task: asyncio.Task[None]
    progress: tuple[int, int, str] = (0, 0, "starting")
    transfer_ns: tuple[int, float] = (0, 0.0)
    lost_ns: int | None = None
    away_ns: int = RESTART_NS
    telemetry: dict[str, Any] = field(default_factory=dict)

    def found(self, now_ns: int) -> None:
        """The target is up: if it was lost, that is the end of an absence."""
        if self.lost_ns is not None:
            # One long absence, such as a night, says little about the next.
            most_ns = max(2 * self.away_ns, RESTART_NS)
            self.away_ns = min(now_ns - self.lost_ns, most_ns)
            self.lost_ns = None

    async def close(self) -> None:
        """Hangs up, for good."""
        await end_tasks([self.task])
        self.link.close()

    def describe(self) -> dict[str, Any]:
        """The link's own description, and the target's progress and telemetry."""
        progress = dict(zip(("done", "total", "text"), self.progress, strict=True))
        return {**self.link.describe(), "progress": progress, "telemetry": self.telemetry}


class LinkListener(Protocol):
    """Receives the reports of links.

    A target is not used until its link has called `on_up` or `on_offer`.
    """

    def on_catalog(
        self, target_id: str, cards: list[ModelCard], problems: list[Any], own: bool = True
    ) -> None:
        """A target has described its models.

        Args:
            target_id: The target.
            cards: The models that it can serve.
            problems: The models that can't be served, and why.
            own: Whether these are this box's own files, whose cards take precedence over others'.
        """

    def on_offer(self, target_id: str, offer: Offer) -> None:
        """A device of this box has loaded, warmed up and measured a variant."""

    def on_way(self, target_id: str, transfer_ns: tuple[int, float]) -> None:
        """The transfer time of a batch to a device is known: per message, and per byte."""

    def on_handover(self, target_id: str, handover_ns: int) -> None:
        """The time is known that a device idles if a batch is sent only when the last is back."""

    def on_up(self, spec: TargetSpec) -> None:
        """A target is ready; it runs nothing."""

    def on_changed(self, spec: TargetSpec, closed_ns: int = 0) -> None:
        """A target that is up has changed; see `TargetChanged`."""

    def on_withdrawn(
        self, target_id: str, variants: Sequence[tuple[str, str]], reason: str
    ) -> None:
        """A target no longer offers some models' variants; see `TargetWithdrew`."""

    def on_lost(self, target_id: str, reason: str, blameless: bool = False) -> None:
        """A target is lost, with all that it was running; see `TargetDown`.

        Args:
            target_id: The target.
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
        """A run has finished.

        Args:
            run_id: The run.
            results: Packed outputs, or an error, per item.
            execute_ns: How long the batch ran.
            notes: Facts about these results that callers should know.
            ran: The device that ran it, if the target is not itself the device.
        """

    def on_not_run(self, run_id: int, reason: str) -> None:
        """A run was refused or skipped without being started."""

    def on_failed(self, run_id: int, reason: str) -> None:
        """A run was started and failed."""

    def on_progress(self, target_id: str, done: int, total: int, text: str) -> None:
        """A target has got further in becoming ready."""

    def on_telemetry(self, target_id: str, reading: dict[str, Any]) -> None:
        """A device's load, memory, power and the like have been read."""
