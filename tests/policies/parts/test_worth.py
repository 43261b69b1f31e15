"""What the default thinks that a batch is worth."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log, log2
from pathlib import Path
from typing import ClassVar

import pytest

from policies.goodput import Everywhere
from policies.parts.serving import Candidate
from policies.parts.worth import CALM, CROWD, ELSEWHERE, NO_CHOICE, SLOWEST, Worth
from replay.experiment import Experiment
from tests.policies.playing import endings, play, standard, written

pytestmark = pytest.mark.no_cover


class Reckoning(Worth):
    """Notes every batch with what was thought of it, and what it is worth by the formula."""

    reckoned: ClassVar[list[tuple[Candidate, float, float]]] = []
    scales: ClassVar[list[float]] = []

    def _ranked(self, found, losses, scale_ns):
        self.scales.append(round(scale_ns / max(each.latency_ns for each in found), 6))
        ranked = super()._ranked(found, losses, scale_ns)
        for (worth, _), candidate, lost in ranked:
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
        slower = min(candidate.bid.one_ns() / least_ns, SLOWEST)
        worth *= exp(CROWD * log(slower) * log2(len(candidate.queue)))
        is_sole = all(done_ns > candidate.deadline_ns for done_ns in others)
        return worth if is_sole else ELSEWHERE * worth


class Noted(Everywhere):
    """The default, whose batches are noted."""

    def _begin(self):
        super()._begin()
        meanwhile = self._worth._meanwhile
        self._worth = Reckoning(
            self._outlook, self._scarcity, meanwhile, self._coming, self.admission, self.scale
        )


TWO_MODELS = """
about: Two models on a GPU that lives on batches
fleet:
  models:
    - {name: usual, base_ms: 5, per_item_ms: 1, batches: [1, 2, 4, 8]}
    - {name: other, base_ms: 4, per_item_ms: 1, batches: [1, 2, 4, 8]}
  boxes: [{devices: [DEVICES]}]
workload:
  requests: 3000
  process: poisson
  load: 1.0
  mix:
    - {model: usual, share: SHARE, deadline_ms: 40, size_bytes: 1000}
    - {model: other, share: 1, deadline_ms: 40, size_bytes: 1000}
"""


def play_noted(experiment: Experiment) -> None:
    Reckoning.reckoned.clear()
    Reckoning.scales.clear()
    play(experiment, f"{__name__}:Noted")


def test_urgency_counts_less_where_all_is_of_one_class(tmp_path) -> None:
    """Once that is known."""
    one = TWO_MODELS.replace("    - {model: other", "    # - {model: other").replace("SHARE", "1")
    play_noted(written(tmp_path, one.replace("DEVICES", '{id: "gpu:0"}, {id: "gpu:1"}')))
    alone = Reckoning.scales.index(0.4 * NO_CHOICE)
    assert alone < 20
    assert set(Reckoning.scales[:alone]) <= {0.4}
    assert set(Reckoning.scales[alone:]) == {0.4 * NO_CHOICE}


@pytest.mark.parametrize(
    ("share", "devices", "least", "most"), [(49, 2, 0.9, 1.0), (3, 2, 0.0, 0.0), (3, 1, 1.0, 1.0)]
)
def test_urgency_counts_less_without_a_choice(tmp_path, share, devices, least, most) -> None:
    """How often the longer scale is taken: with one other in so many, on so many devices."""
    ids = ", ".join(f'{{id: "gpu:{number}"}}' for number in range(devices))
    text = TWO_MODELS.replace("SHARE", str(share)).replace("DEVICES", ids)
    play_noted(written(tmp_path, text))
    longer = Reckoning.scales.count(0.4 * NO_CHOICE) / len(Reckoning.scales)
    assert least <= longer <= most


@pytest.mark.parametrize("name", ["mixed-worth", "steep-batches"])
def test_a_batch_is_worth_what_its_requests_are(name: str) -> None:
    """Those of one class are reckoned on from each other where one begins with another."""
    play_noted(standard(name, requests=3_000))
    batches = [candidate.batch for candidate, *_ in Reckoning.reckoned]
    assert len(batches) > 500
    assert any(more[: len(less)] == less for less, more in pairwise(batches))
    assert any(
        one[0].kind == other[0].kind and one[0] is not other[0] for one, other in pairwise(batches)
    )
    for _, worth, plain in Reckoning.reckoned:
        assert worth == pytest.approx(plain, rel=1e-9, abs=1e-15)


VARIANTS = """
about: One device and a model with two variants
fleet:
  models:
    - {name: m, variant: large, base_ms: 0, per_item_ms: 10, batches: [1], accuracy: 0.9}
    - {name: m, variant: small, base_ms: 0, per_item_ms: 4, batches: [1], accuracy: SMALL}
  boxes: [{devices: [{id: "cpu:0"}]}]
workload: {requests: 3000, process: poisson, load: LOAD, mix: [{model: m, deadline_ms: 60}]}
"""


@pytest.mark.parametrize(
    ("load", "small", "least", "most"),
    [(0.1, 0.89, 1.0, 1.0), (0.7, 0.89, 0.05, 0.3), (0.7, 0.1, 0.5, 1.0), (1.3, 0.89, 0.0, 0.02)],
)
def test_the_preferred_variant_runs_where_its_time_costs_less_than_it_is_better(
    tmp_path: Path, load: float, small: float, least: float, most: float
) -> None:
    text = VARIANTS.replace("LOAD", str(load)).replace("SMALL", str(small))
    played = endings(written(tmp_path, text))
    ran = [ending.run.variant for ending in played if ending.run is not None]
    assert least <= ran.count("large") / len(ran) <= most


THEN_CALM = """
workload:
  seconds: 40
  streams:
    - {process: poisson, rate_per_s: 325, end_s: 10, mix: [{model: m, deadline_ms: 60}]}
    - {process: poisson, rate_per_s: 3, start_s: 10, mix: [{model: m, deadline_ms: 60}]}
"""


def test_the_preferred_variant_runs_again_soon_after_an_overload(tmp_path: Path) -> None:
    text = VARIANTS.replace("SMALL", "0.89").partition("workload:")[0] + THEN_CALM
    ran = [
        ending.run.variant
        for ending in endings(written(tmp_path, text))
        if ending.run is not None and ending.at_ns > 15_000_000_000
    ]
    assert len(ran) > 50
    assert set(ran) == {"large"}


BULK = """
about: Many requests at once, with a deadline that only the quick variant can meet for all
fleet:
  models:
    - {name: m, variant: large, base_ms: 0, per_item_ms: LARGE, batches: BATCHES}
    - {name: m, variant: small, base_ms: 0, per_item_ms: 2, batches: BATCHES}
  boxes: [{devices: [{id: "cpu:0"}]}]
workload:
  requests: 400
  process: constant
  rate_per_s: 1000000
  mix: [{model: m, deadline_ms: 1000}]
"""


@pytest.mark.parametrize(
    ("large_ms", "batches", "least"), [(20, [1], 0.01), (20, [1, 2, 4], 0.01), (3, [1, 2, 4], 0.1)]
)
def test_a_bulk_is_not_lost_because_the_preferred_variant_had_its_time(
    tmp_path: Path, large_ms: int, batches: list[int], least: float
) -> None:
    """Whoever was admitted because the quick one could serve all is served by it in the end."""
    text = BULK.replace("LARGE", str(large_ms)).replace("BATCHES", str(batches))
    played = list(endings(written(tmp_path, text)))
    assert len(played) == 400
    assert sum(ending.in_time for ending in played) > 0.99 * len(played)
    ran = [ending.run.variant for ending in played if ending.run is not None]
    assert ran.count("large") >= least * len(ran)


def test_a_variant_that_hardly_knows_better_takes_no_time_that_others_need(tmp_path: Path) -> None:
    text = VARIANTS.replace("LOAD", "0.4").replace("SMALL", "0.89")
    played = list(endings(written(tmp_path, text)))
    assert sum(ending.in_time for ending in played) > 0.995 * len(played)
