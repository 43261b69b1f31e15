"""The order in which boxes are tried: repeatedly the better of two drawn at random.

What is known of another box is as old as its last report. If every box sent work to the one that
looks best, all would choose the same one, and it would be the most loaded by the time the work
arrives (herding). The less loaded of two randomly drawn boxes is nearly as good as the best of all,
and different boxes draw different pairs.

Source: M. Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 12(10),
2001, and "How Useful Is Old Information?", IEEE TPDS 11(1), 2000. The random sequence is seeded
with the time of the event. So the same events give the same order, and two boxes, whose clocks
differ, draw differently.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.chance import Chance
from scheduler.core.targets import TargetState


def nearest_first(targets: Iterable[TargetState], now_ns: int) -> list[TargetState]:
    """The devices of this box, then other boxes in randomised order, then all else.

    Args:
        targets: The targets that take work.
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
    """Repeatedly takes the less loaded of two drawn peers until none is left; empties `peers`."""
    order: list[TargetState] = []
    while len(peers) > 1:
        first = chance.below(len(peers))
        second = (first + 1 + chance.below(len(peers) - 1)) % len(peers)
        chosen = first if _load(peers[first]) <= _load(peers[second]) else second
        order.append(peers.pop(chosen))
    return order + peers


def _load(target: TargetState) -> float:
    """How full a box is: batches sent there, relative to the capacity its last report left."""
    return (len(target.runs) + 1) / target.spec.width
