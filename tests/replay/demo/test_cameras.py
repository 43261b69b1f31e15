from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.demo import cameras
from replay.demo.cameras import Record, Run, Scans, Shot, lag_warning, make_cameras, schedule
from scheduler import AsyncClient, CancelledError, DeadlineInfeasible, Result, Timing
from scheduler.core.outcomes import Outcome
from tests.replay.fake_client import FakeClient

SCANS = Scans(np.zeros((10, 1, 8, 8), np.float32), np.arange(10, dtype=np.uint8))

COUNTS = st.integers(1, 12)
RATES = st.floats(1, 2000)
SECONDS = st.floats(0.1, 3)
SEEDS = st.integers(0, 1000)
JITTERS = st.floats(0, 0.49)


class TestSchedule:
    @given(COUNTS, RATES, SECONDS, SEEDS, JITTERS)
    def test_it_is_in_order_and_within_its_time(self, count, rate, seconds, seed, jitter):
        shots = schedule(make_cameras(count, rate, seed), seconds, 10, seed, jitter)
        times = [shot.at_s for shot in shots]
        assert times == sorted(times)
        assert all(0 <= at_s < seconds for at_s in times)
        assert all(0 <= shot.scan < 10 for shot in shots)

    @given(COUNTS, RATES, SECONDS, SEEDS, JITTERS)
    def test_every_camera_keeps_its_pace(self, count, rate, seconds, seed, jitter):
        for camera in make_cameras(count, rate, seed):
            shots = schedule([camera], seconds, 10, seed, jitter)
            period_s = 1 / camera.fps
            assert abs(len(shots) - seconds * camera.fps) <= 2
            # The first one may have been due before the start.
            for before, after in pairwise(shots[1:]):
                gap_s = after.at_s - before.at_s
                assert (1 - 2 * jitter) * period_s - 1e-9 <= gap_s
                assert gap_s <= (1 + 2 * jitter) * period_s + 1e-9

    @given(COUNTS, RATES, SEEDS)
    def test_the_seed_decides(self, count, rate, seed):
        plan = make_cameras(count, rate, seed)
        assert make_cameras(count, rate, seed) == plan
        seconds = 5 if rate < 100 else 1  # enough shots that chance won't choose the same scans
        shots = schedule(plan, seconds, 1000, seed)
        assert schedule(plan, seconds, 1000, seed) == shots
        assert schedule(plan, seconds, 1000, seed + 1) != shots

    @given(COUNTS, SEEDS)
    def test_the_cameras_stay_the_same_at_another_rate(self, count, seed):
        slow, fast = make_cameras(count, 100, seed), make_cameras(count, 300, seed)
        for one, other in zip(slow, fast, strict=True):
            assert other.fps == pytest.approx(3 * one.fps)
            assert (one.deadline_ms, one.offset) == (other.deadline_ms, other.offset)

    def test_deadlines_are_evenly_apart(self):
        deadlines_ms = [camera.deadline_ms for camera in make_cameras(8, 100, 1)]
        assert (deadlines_ms[0], deadlines_ms[-1]) == (30, 100)
        assert np.ptp(np.diff(deadlines_ms)) == pytest.approx(0)

    @pytest.mark.parametrize("jitter", [-0.1, 0.5])
    def test_a_jitter_that_would_mix_up_a_cameras_scans_is_refused(self, jitter):
        with pytest.raises(ValueError, match=r"from 0 to below 0\.5"):
            schedule([], 1, 10, 1, jitter)


def result(digit: int, outcome: Outcome = Outcome.COMPLETED) -> Result:
    scores = np.eye(10, dtype=np.float32)[[digit]]
    return Result({"scores": scores}, outcome, "cpu:0", "large", "x", 1, Timing(0, 0, 0, 0))


def due_at_once(count: int, deadline_ms: float = 50.0) -> list[Shot]:
    return [Shot(0.0, 0, scan, deadline_ms) for scan in range(count)]


def play(client: FakeClient, shots: list[Shot], **options: Any) -> Run:
    run = Run(cast(AsyncClient, client), "digits", "large", SCANS, **options)
    asyncio.run(cast(Any, run.play(shots)))
    return run


class TestRun:
    def test_nothing_is_held_back_while_nothing_comes_back(self):
        client = FakeClient()

        def answer_all_at_the_end() -> None:
            if len(client.sent) == 5:
                for digit, future in enumerate(client.futures):
                    future.set_result(result(digit))

        client.on_submit = answer_all_at_the_end
        run = play(client, due_at_once(5))
        assert [record.outcome for record in run.records] == ["completed"] * 5
        assert (run.tally.sent, run.tally.correct, run.tally.answered) == (5, 5, 5)

    def test_each_scan_goes_out_with_its_own_deadline(self):
        client = FakeClient()
        client.on_submit = lambda: client.futures[-1].set_result(result(0))
        play(client, [Shot(0.0, 0, 3, 30.0), Shot(0.0, 1, 4, 90.0)], accept_late=True)
        assert [sent["deadline_ms"] for sent in client.sent] == [30.0, 90.0]
        assert all(sent["accept_late"] and sent["variant"] == "large" for sent in client.sent)
        assert client.sent[0]["inputs"]["image"].shape == (1, 8, 8)

    def test_a_box_that_is_not_told_the_deadline_is_judged_by_it(self):
        ticks = iter(range(1000))
        client = FakeClient()
        client.on_submit = lambda: client.futures[-1].set_result(result(0))
        run = play(
            client,
            [Shot(0.0, 0, 0, 30.0), Shot(0.0, 0, 0, 90_000.0)],
            budget_ms=100_000.0,
            clock=lambda: float(next(ticks)),
        )
        assert [sent["deadline_ms"] for sent in client.sent] == [100_000.0] * 2
        assert [record.outcome for record in run.records] == ["completed"] * 2
        assert [record.verdict for record in run.records] == ["late", "completed"]

    def test_how_each_ended_is_noted(self):
        client = FakeClient()
        ends = [
            lambda future: future.set_result(result(0)),
            lambda future: future.set_result(result(0, Outcome.LATE)),
            lambda future: future.set_exception(DeadlineInfeasible("no target")),
            lambda future: future.set_exception(CancelledError()),
        ]
        client.on_submit = lambda: ends[len(client.sent) - 1](client.futures[-1])
        run = play(client, due_at_once(4))
        found = [(record.outcome, record.correct, record.reason) for record in run.records]
        assert found == [
            ("completed", True, ""),
            ("late", False, ""),
            ("infeasible", None, "no target"),
            ("cancelled", None, ""),
        ]
        assert run.tally.verdicts == {"completed": 1, "late": 1, "infeasible": 1, "cancelled": 1}
        assert all(record.latency_ms >= 0 for record in run.records)

    def test_what_never_ends_has_no_outcome_and_is_cancelled(self, monkeypatch):
        monkeypatch.setattr(cameras, "SETTLE_S", 0.0)
        client = FakeClient()
        run = play(client, due_at_once(2, deadline_ms=0.0))
        assert [record.outcome for record in run.records] == [None, None]
        assert all(future.cancelled() for future in client.futures)

    def test_time_is_told_by_the_clock_alone(self):
        ticks = iter(range(1000))
        client = FakeClient()
        client.on_submit = lambda: client.futures[-1].set_result(result(0))
        run = play(client, due_at_once(2), clock=lambda: float(next(ticks)))
        first, second = run.records
        assert 0 < first.sent_s < second.sent_s
        assert first.ended_s > first.sent_s
        assert first.lag_ms == first.sent_s * 1e3


class TestLag:
    def test_a_generator_that_kept_to_its_schedule_is_not_blamed(self):
        assert lag_warning([]) is None
        assert lag_warning([Record(Shot(1.0, 0, 0, 50.0), False, 50.0, 1.001)] * 100) is None
        assert Record(Shot(1.0, 0, 0, 50.0), False, 50.0, 0.999).lag_ms == 0

    def test_one_that_did_not_is(self):
        warning = lag_warning([Record(Shot(1.0, 0, 0, 50.0), False, 50.0, 1.02)] * 100)
        assert warning is not None
        assert "20.0 ms" in warning
