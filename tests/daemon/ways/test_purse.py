from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.daemon.ways.purse import Purse

HOUR, DAY = 3_600, 86_400


class Clock:
    def __init__(self, now_s: float = 1e9):
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_a_budget_all_is_counted_and_nothing_refused_or_written(tmp_path: Path, clock):
    purse = Purse({}, tmp_path / "spent.json", clock)
    assert all(purse.reserve(5.0) for _ in range(3))
    assert purse.spent == 15.0
    purse.close()
    assert list(tmp_path.iterdir()) == []


def test_what_was_spent_is_told_without_what_adding_up_left_behind(tmp_path: Path, clock):
    purse = Purse({HOUR: 10.0}, tmp_path / "spent.json", clock)
    assert all(purse.reserve(0.1) for _ in range(3))
    assert purse.spent == 0.1 + 0.1 + 0.1 != 0.3
    told = purse.describe()
    assert (told["spent"], told["budgets"][0]["spent"]) == (0.3, 0.3)


@pytest.mark.parametrize(("budget", "cost"), [(0.3, 0.1), (0.7, 0.1), (1.0, 0.001)])
def test_adding_up_takes_nothing_from_a_budget(tmp_path: Path, clock, budget: float, cost: float):
    purse, times = Purse({HOUR: budget}, tmp_path / "spent.json", clock), round(budget / cost)
    assert all(purse.reserve(cost) for _ in range(times))
    assert not purse.reserve(cost)
    wait_s = purse.affordable_in_s(cost * times)
    assert wait_s is not None
    assert wait_s > HOUR


def test_a_budget_is_for_any_hour_not_for_calendar_hours(tmp_path: Path, clock):
    purse = Purse({HOUR: 10.0}, tmp_path / "spent.json", clock)
    assert purse.reserve(10.0)
    assert not purse.reserve(0.01)
    wait_s = purse.affordable_in_s(10.0)
    assert wait_s is not None
    assert HOUR <= wait_s <= HOUR + 60
    clock.now_s += HOUR - 1
    assert not purse.reserve(0.01)
    clock.now_s += 62
    assert purse.reserve(10.0)


def test_what_costs_more_than_a_budget_is_never_affordable(tmp_path: Path, clock):
    purse = Purse({HOUR: 1.0, DAY: 2.0}, tmp_path / "spent.json", clock)
    assert purse.affordable_in_s(1.5) is None
    assert purse.affordable_in_s(1.0) == 0.0


def test_a_restart_does_not_bring_a_new_budget(tmp_path: Path, clock):
    path = tmp_path / "spent.json"
    purse = Purse({HOUR: 10.0}, path, clock)
    for _ in range(5):
        assert purse.reserve(1.0)
    killed = Purse({HOUR: 10.0}, path, clock)
    assert 5.0 - 0.1 - 1e-9 <= killed.left() <= 5.0, "at most a hundredth is lost, none is gained"
    killed.close()
    assert Purse({HOUR: 10.0}, path, clock).left() == killed.left()


def test_what_is_taken_back_later_does_not_allow_more_in_the_hour_after(tmp_path: Path, clock):
    purse = Purse({HOUR: 10.0}, tmp_path / "spent.json", clock)
    assert purse.reserve(8.0)
    clock.now_s += 90
    purse.refund(7.0, 90.0)
    assert purse.left() == 9.0
    clock.now_s += HOUR
    assert purse.left() == 10.0, "what was reserved and what was taken back are over together"


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0, 3), st.floats(0, 900), st.sampled_from(["spend", "die", "stop"])),
        max_size=40,
    )
)
def test_no_hour_and_no_day_costs_more_than_its_budget(steps):
    with TemporaryDirectory() as folder:
        clock, path = Clock(), Path(folder) / "spent.json"
        budgets = {HOUR: 5.0, DAY: 12.0}
        purse, spent = Purse(budgets, path, clock), []
        for cost, pause_s, what in steps:
            clock.now_s += pause_s
            if what == "spend" and purse.reserve(cost):
                spent.append((clock.now_s, cost))
            elif what == "stop":
                purse.close()
            if what != "spend":
                purse = Purse(budgets, path, clock)
        for seconds, limit in budgets.items():
            for at_s, _ in spent:
                assert sum(c for t, c in spent if at_s - seconds < t <= at_s) <= limit + 1e-9


def test_what_a_batch_did_not_use_comes_back(tmp_path: Path, clock):
    purse = Purse({HOUR: 1.0}, tmp_path / "spent.json", clock)
    assert purse.reserve(1.0)
    purse.refund(0.25)
    assert purse.spent == 0.75
    assert purse.reserve(0.25)


@pytest.mark.parametrize("text", ["", "{}", '{"spent": 3}', "not json"])
def test_a_damaged_file_counts_as_a_budget_that_is_spent(tmp_path: Path, clock, text: str):
    path = tmp_path / "spent.json"
    path.write_text(text)
    purse = Purse({HOUR: 1.0}, path, clock)
    assert not purse.reserve(0.01)
    clock.now_s += HOUR + 61
    assert purse.reserve(0.01)


def test_nothing_is_spent_that_can_not_be_written_down(tmp_path: Path, clock):
    (tmp_path / "file").write_text("")
    purse = Purse({HOUR: 1.0}, tmp_path / "file" / "spent.json", clock)
    assert not purse.reserve(0.1)
    assert purse.spent == 0.0


def test_a_clock_that_was_set_back_counts_as_spent_now(tmp_path: Path, clock):
    steady = Clock()
    purse = Purse({HOUR: 10.0}, tmp_path / "spent.json", clock, steady)
    assert purse.reserve(4.0)
    clock.now_s -= 7 * DAY
    for restarted in (purse, Purse({HOUR: 10.0}, tmp_path / "spent.json", clock)):
        assert restarted.left() == pytest.approx(6.0, abs=0.2)
    assert purse.reserve(5.0)
    purse.refund(4.0, after_s=1.0)
    assert purse.left() == pytest.approx(5.0)
    steady.now_s += HOUR + 61
    assert purse.left() == pytest.approx(10.0)


def test_a_box_that_starts_without_the_time_gets_no_new_budget_when_it_learns_it(tmp_path, clock):
    purse, now_s = Purse({DAY: 10.0}, tmp_path / "spent.json", clock), clock.now_s
    assert purse.reserve(9.0)
    clock.now_s = 5.0
    restarted = Purse({DAY: 10.0}, tmp_path / "spent.json", clock)
    assert not restarted.reserve(2.0)
    clock.now_s = now_s + 60
    assert not restarted.reserve(2.0)


def test_a_clock_that_is_set_to_before_the_latest_spending_makes_none_of_it_old(tmp_path, clock):
    """As where the clock was an hour ahead before the box lost the time."""
    purse, now_s = Purse({DAY: 10.0}, tmp_path / "spent.json", clock), clock.now_s
    assert purse.reserve(9.0)
    clock.now_s = 5.0
    restarted = Purse({DAY: 10.0}, tmp_path / "spent.json", clock)
    clock.now_s = now_s - HOUR
    assert not restarted.reserve(2.0)


def test_with_a_clock_that_is_behind_no_more_is_told_as_spent_than_counts(tmp_path, clock):
    steady = Clock()
    purse = Purse({HOUR: 10.0}, tmp_path / "spent.json", clock, steady)
    assert purse.reserve(9.0)
    clock.now_s = 5.0
    steady.now_s += HOUR + 61
    assert purse.describe()["budgets"][0]["spent"] == 0
