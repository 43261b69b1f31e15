"""What the default thinks that a batch is worth."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log, log2
from typing import ClassVar

import pytest

from policies.goodput import Everywhere
from policies.parts.serving import Candidate
from policies.parts.worth import CALM, CROWD, ELSEWHERE, Worth
from replay.experiment import PolicyChoice
from replay.scenarios import FOLDER, load_scenario


class Reckoning(Worth):
    """Notes every batch with what was thought of it, and what it is worth by the formula."""

    reckoned: ClassVar[list[tuple[Candidate, float, float]]] = []

    def _ranked(self, found, losses, scale_ns):
        ranked = super()._ranked(found, losses, scale_ns)
        for ((worth, _), candidate), lost in zip(ranked, losses, strict=True):
            plain = self._by_the_formula(candidate, scale_ns) - lost
            self.reckoned.append((candidate, worth, plain / candidate.latency_ns))
        return ranked

    def _by_the_formula(self, candidate: Candidate, scale_ns: float) -> float:
        price, wanted = self._scarcity.saved(candidate.queue.kind)
        worth = 0.0
        for request in candidate.batch:
            urgency = exp((candidate.done_ns - request.deadline_ns) / scale_ns)
            worth += request.weight * (urgency + CALM)
            worth += (1 - urgency) * wanted * min(price, request.weight)
        others = [
            self._outlook.done_ns(bid)
            for bid in self._outlook.bids(candidate.queue.kind)
            if bid.target_id != candidate.bid.target_id
        ]
        least_ns = min(bid.one_ns() for bid in self._outlook.bids(candidate.queue.kind))
        slower = candidate.bid.one_ns() / least_ns
        worth *= exp(CROWD * log(slower) * log2(len(candidate.queue)))
        is_sole = all(done_ns > candidate.deadline_ns for done_ns in others)
        return worth if is_sole else ELSEWHERE * worth


class Noted(Everywhere):
    """The default, whose batches are noted."""

    def _begin(self):
        super()._begin()
        worth = self._worth
        self._worth = Reckoning(self._outlook, self._scarcity, worth._meanwhile, self.scale)


@pytest.mark.parametrize("name", ["mixed-worth", "steep-batches"])
def test_a_batch_is_worth_what_its_requests_are(name: str) -> None:
    """Those of one class are reckoned on from each other where one begins with another."""
    Reckoning.reckoned.clear()
    choice = PolicyChoice.parse(f"{__name__}:Noted")
    load_scenario(FOLDER / f"{name}.yaml").experiment(requests=2_000).simulate(choice, 1)
    batches = [candidate.batch for candidate, *_ in Reckoning.reckoned]
    assert len(batches) > 500
    assert any(more[: len(less)] == less for less, more in pairwise(batches))
    assert any(
        one[0].kind == other[0].kind and one[0] is not other[0] for one, other in pairwise(batches)
    )
    for _, worth, plain in Reckoning.reckoned:
        assert worth == pytest.approx(plain, rel=1e-9, abs=1e-15)
