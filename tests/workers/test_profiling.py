from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.profiling import Effort, batch_ladder, measure_ladder, thin

MS = 1_000_000
DEFAULT = Effort()


@dataclass
class FakeDevice:
    """A session and its clock: a batch takes what `law` says of its size and of the run."""

    law: Callable[[int, int], int]
    now_ns: int = 0
    runs: dict[int, int] = field(default_factory=dict)

    def run(self, batch: int) -> None:
        run = self.runs.get(batch, 0)
        self.runs[batch] = run + 1
        self.now_ns += self.law(batch, run)

    def read_ns(self) -> int:
        return self.now_ns


def measure(law: Callable[[int, int], int], max_batch: int, effort: Effort = DEFAULT):
    device = FakeDevice(law)
    ladder = measure_ladder(device.run, max_batch, effort, clock_ns=device.read_ns)
    return ladder, device


@pytest.mark.parametrize(
    ("max_batch", "ladder"),
    [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8]), (33, [1, 2, 4, 8, 16, 32, 33])],
)
def test_the_ladder_doubles_and_ends_at_the_limit(max_batch, ladder):
    assert list(batch_ladder(max_batch)) == ladder


def test_batches_that_pay_are_all_measured():
    ladder, _ = measure(lambda batch, run: 10 * MS + batch * MS, 32)

    assert ladder.keys() == {1, 2, 4, 8, 16, 32}
    assert set(ladder[4]) == {14 * MS}


def test_two_doublings_without_gain_end_the_ladder():
    ladder, _ = measure(lambda batch, run: batch * MS, 32)

    assert ladder.keys() == {1, 2, 4}


def test_one_doubling_without_gain_does_not():
    # Batch 2 gains nothing, 4 does; 8 and 16 gain nothing.
    times = {1: 1 * MS, 2: 2 * MS, 4: 3 * MS, 8: 6 * MS, 16: 12 * MS}
    ladder, _ = measure(lambda batch, run: times[batch], 32)

    assert ladder.keys() == {1, 2, 4, 8, 16}


@pytest.mark.parametrize(("share", "last"), [(0.04, 32), (0.02, 4)])
def test_a_gain_counts_from_three_per_cent(share, last):
    ladder, _ = measure(
        lambda batch, run: round(batch * MS / (1 + share) ** (batch.bit_length() - 1)), 32
    )

    assert max(ladder) == last


def test_batches_of_a_slow_model_that_pay_are_measured_a_few_times():
    ladder, device = measure(lambda batch, run: 200 * MS + 5 * batch * MS, 32)

    assert ladder.keys() == {1, 2, 4}  # for which the time suffices
    assert set(ladder[4]) == {220 * MS}
    assert device.now_ns < 4_000 * MS


def test_a_slow_batch_that_does_not_pay_runs_twice_and_ends_the_ladder():
    ladder, device = measure(lambda batch, run: 300 * MS * batch, 32)

    assert ladder.keys() == {1}
    assert device.runs == {1: 1 + 3, 2: 2}


def test_a_slow_batch_whose_first_run_takes_longer_is_measured():
    ladder, _ = measure(lambda batch, run: (400 + 300 * (run == 0)) * MS, 2)

    assert ladder == {1: (400 * MS,) * 3, 2: (400 * MS,) * 3}


@pytest.mark.parametrize(
    ("alone_ms", "count", "is_repeated"), [(300, 4, False), (300, 3, True), (200, 4, True)]
)
def test_what_single_items_of_a_slow_model_took_before_is_not_measured_again(
    alone_ms, count, is_repeated
):
    device = FakeDevice(lambda batch, run: alone_ms * MS * batch)
    alone_ns = [500 * MS] + [alone_ms * MS] * (count - 1)
    ladder = measure_ladder(device.run, 1, DEFAULT, clock_ns=device.read_ns, alone_ns=alone_ns)

    assert set(ladder[1]) == {alone_ms * MS}
    assert (1 in device.runs) == is_repeated


@pytest.mark.parametrize(("per_item_ms", "largest"), [(100, 8), (105, 4), (205, 2)])
def test_no_batch_is_tried_that_would_take_longer_than_a_second(per_item_ms, largest):
    effort = Effort(total_ns=60_000 * MS)
    ladder, device = measure(lambda batch, run: (200 + per_item_ms * batch) * MS, 32, effort)

    assert max(ladder) == max(device.runs) == largest


def test_a_very_slow_model_is_measured_a_few_times_only():
    ladder, device = measure(lambda batch, run: 60_000 * MS, 32)

    assert ladder == {1: (60_000 * MS,) * 3}
    assert device.runs == {1: 4}


def test_short_runs_repeat_up_to_the_limit_and_long_ones_up_to_the_budget():
    _, short = measure(lambda batch, run: 1_000, 1)
    ladder, _ = measure(lambda batch, run: 20 * MS, 1)
    least, _ = measure(lambda batch, run: 100 * MS, 1)
    slow, _ = measure(lambda batch, run: 200 * MS, 1)

    assert 60 + 3 <= short.runs[1] <= 60 + 30
    assert len(ladder[1]) == 18  # 350 ms of 20 ms
    assert len(least[1]) == 4
    assert len(slow[1]) == 3


def test_warming_up_lasts_until_runs_get_no_faster():
    # Each of the first 12 runs is 10 % faster than the one before.
    ladder, _ = measure(lambda batch, run: round(10 * MS * 0.9 ** min(run, 12)), 1)

    assert max(ladder[1]) <= 1.1 * min(ladder[1])


def test_a_first_slow_run_does_not_count():
    ladder, _ = measure(lambda batch, run: 900 * MS if run == 0 else MS, 1)

    assert set(ladder[1]) == {MS}


def test_a_warm_up_that_never_settles_ends_with_the_budget():
    # Each run is 10 % faster than the one before, and none takes less than 20 ms.
    _, device = measure(lambda batch, run: round(20 * MS * (1 + 0.9**run)), 1)

    warm_ups_and_repeats = device.runs[1]
    assert warm_ups_and_repeats <= 350 // 20 + 350 // 20 + 2


def test_no_larger_batch_is_tried_once_the_time_is_over():
    ladder, device = measure(lambda batch, run: 150 * MS + batch * MS, 32)

    # Three repeats of 150 ms and the warm-up take nearly a second a size.
    assert ladder.keys() == {1, 2, 4, 8}
    assert device.now_ns < 4_000 * MS


def test_an_error_of_the_session_is_the_callers():
    def law(batch: int, run: int) -> int:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        measure(law, 4)


def test_each_batch_size_is_announced():
    announced: list[int] = []
    device = FakeDevice(lambda batch, run: 10 * MS)

    def accept(batch: int, measured) -> bool:
        announced.append(batch)
        return True

    measure_ladder(device.run, 4, DEFAULT, clock_ns=device.read_ns, accept=accept)

    assert announced == [1, 2, 4]


def test_a_refused_batch_size_ends_the_ladder_but_one_is_always_measured():
    device = FakeDevice(lambda batch, run: 10 * MS + batch)

    ladder = measure_ladder(
        device.run,
        16,
        DEFAULT,
        clock_ns=device.read_ns,
        accept=lambda batch, measured: batch in (2, 4),
    )

    assert ladder.keys() == {1, 2, 4}
    assert 8 not in device.runs


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=200), st.integers(1, 40))
def test_thinning_keeps_ascending_samples_and_the_middle(samples, points):
    thinned = thin(samples, points)

    assert list(thinned) == sorted(thinned)
    assert set(thinned) <= set(samples)
    assert len(thinned) == min(len(samples), points)


def test_thinned_samples_are_equally_likely():
    assert thin(list(range(64, 0, -1)), 4) == (9, 25, 41, 57)
