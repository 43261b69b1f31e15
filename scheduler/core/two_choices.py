"""In which order boxes are asked: the better of two by chance first.

What is known of another box is as old as its last report. If everybody took the one that looks
best, all would take the same one, and it would be the worst by the time they are there. Of two
that are drawn, the less loaded one still is nearly as good as the best of all, and nobody draws
the same two.

Source: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10),
2001, and "How Useful Is Old Information?", IEEE TPDS 11(1), 2000. Chance starts from the time of
the event: the same events bring the same order, and two boxes never read the same clock.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.chance import Chance
from scheduler.core.targets import TargetState


def nearest_first(targets: Iterable[TargetState], now_ns: int) -> list[TargetState]:
    """The devices of this box, then other boxes in an order of chance, then all else.

    Args:
        targets: Those that take work.
        now_ns: The time of the event.
    """
    local: list[TargetState] = []
    peers: list[TargetState] = []
    far: list[TargetState] = []
    for target in targets:
        spec = target.spec
        (peers if spec.peer else far if spec.remote else local).append(target)
    return local + (_drawn(peers, Chance(now_ns)) if len(peers) > 1 else peers) + far


def _drawn(peers: list[TargetState], chance: Chance) -> list[TargetState]:
    """Again and again the less loaded of two, until none is left; empties `peers`."""
    order: list[TargetState] = []
    while len(peers) > 1:
        first = chance.below(len(peers))
        second = (first + 1 + chance.below(len(peers) - 1)) % len(peers)
        chosen = first if _load(peers[first]) <= _load(peers[second]) else second
        order.append(peers.pop(chosen))
    return order + peers


def _load(target: TargetState) -> float:
    """How full it is: what was sent there since its report counts against the room it has left."""
    return (len(target.runs) + 1) / target.spec.width
