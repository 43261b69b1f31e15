"""Small building blocks: offers, targets and requests in milliseconds."""

from __future__ import annotations

from typing import Any, TypeVar

from policies import POLICIES
from replay.laws import Watch
from scheduler.core.commands import Command, Finish
from scheduler.core.events import Submitted
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import Request, RequestClass
from scheduler.core.target_specs import TargetSpec

C = TypeVar("C", bound=Command)
MS = 1_000_000
M = RequestClass("m")
PROMPT = sorted(set(POLICIES) - {"deferred"})
"""The policies that let no target idle while something waits for it."""


def offer(
    model: str = "m",
    variant: str = "v",
    base_ms: float = 2,
    item_ms: float = 1,
    sizes: tuple[int, ...] = (1, 2, 4, 8),
    rank: int = 0,
    spread: float = 0.0,
) -> Offer:
    """An offer whose latency is linear in the batch size; `spread` widens it both ways."""
    ladder = {
        size: tuple(
            int((base_ms + item_ms * size) * MS * (1 + spread * (i - 10) / 10)) for i in range(21)
        )
        for size in sizes
    }
    return Offer(model, variant, "runtime", ladder, rank)


def target(target_id: str = "cpu:0", *offers: Offer, slots: int = 2) -> TargetSpec:
    return TargetSpec(target_id, offers or (offer(),), slots)


def request(request_id: int, deadline_ms: float, kind: RequestClass = M, **rest: Any) -> Request:
    return Request(request_id, kind, int(deadline_ms * MS), **rest)


def of(kind: type[C], commands: list[Command]) -> list[C]:
    """The commands of a kind."""
    return [command for command in commands if isinstance(command, kind)]


def outcomes(commands: list[Command]) -> dict[int, Outcome]:
    """Who ended, and how."""
    return {finish.request_id: finish.outcome for finish in of(Finish, commands)}


def submit(watch: Watch, *requests: Request, at_ms: float = 0) -> list[Command]:
    return watch.handle(Submitted(requests), int(at_ms * MS))
