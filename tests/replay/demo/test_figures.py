from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from replay.demo.box import device_cores
from replay.demo.cameras import Record, Shot
from replay.demo.figures import PHASES, Kill, capacity_of, laws, phase_figures, recovery
from replay.demo.view import share, summary

NORMAL, FCFS, GOODPUT, KILLED = PHASES


def record(
    outcome: str | None, latency_ms: float = 10.0, sent_s: float = 0.0, accept_late: bool = False
) -> Record:
    shot = Shot(sent_s, 0, 0, 50.0)
    answered = True if outcome in ("completed", "late") else None
    return Record(shot, accept_late, 50.0, sent_s, sent_s + latency_ms / 1e3, outcome, answered)


def models(*targets: dict[str, float]) -> dict[str, object]:
    offers = [
        {
            "target": f"cpu:{number}",
            "runtime": "openvino",
            "latency_ms": {size: {"p50": p50, "p95": p50} for size, p50 in latency.items()},
        }
        for number, latency in enumerate(targets)
    ]
    return {"models": [{"name": "digits", "variants": [{"name": "large", "targets": offers}]}]}


class TestCapacity:
    def test_it_is_the_best_batch_of_every_target(self):
        found = capacity_of(models({"1": 5.0, "8": 32.0}, {"1": 2.0, "8": 20.0}), "digits", "large")
        assert found is not None
        assert [target["best_batch"] for target in found["targets"]] == [8, 1]
        assert found["capacity_per_s"] == pytest.approx(250 + 500)
        assert found["alone_ms"] == 2.0

    @pytest.mark.parametrize(("model", "variant"), [("digits", "small"), ("cats", "large")])
    def test_a_box_that_does_not_run_it_has_none(self, model, variant):
        assert capacity_of(models({"1": 5.0}), model, variant) is None
        assert capacity_of(models(), "digits", "large") is None


class TestPhases:
    def test_every_request_is_counted_once(self):
        outcomes = ["completed", "late", "infeasible", "overloaded", "unavailable", "expired"]
        records = [record(outcome) for outcome in [*outcomes, "failed", "cancelled", None]]
        found = phase_figures(FCFS, records, 1.0, 100.0)
        keys = ("in_time", "late", "refused", "expired", "other", "unfinished")
        assert [found[key] for key in keys] == [1, 1, 3, 1, 2, 1]
        assert sum(found[key] for key in keys) == found["sent"] == 9

    def test_a_perfect_scheduler_does_what_is_offered_or_what_the_box_can(self):
        records = [record("completed")] * 80 + [record("infeasible")] * 120
        found = phase_figures(GOODPUT, records, 1.0, 100.0)
        assert (found["possible_per_s"], found["share_of_possible"]) == (100.0, 0.8)
        found = phase_figures(GOODPUT, records, 4.0, 100.0)
        assert (found["possible_per_s"], found["share_of_possible"]) == (50.0, 0.4)

    def test_nothing_has_no_percentiles(self):
        found = phase_figures(NORMAL, [], 1.0, 100.0)
        assert found["latency_ms"] == {"p50": None, "p99": None}
        assert found["refusal_ms"] == {"p50": None, "p99": None, "within_5_ms": None}
        assert (found["accuracy"], found["share_of_possible"]) == (None, None)


class TestLaws:
    def test_kept(self):
        records = [record("completed"), record("late", 60.0, accept_late=True), record("expired")]
        assert laws([phase_figures(FCFS, records, 1.0, 9.0)]) == {"kept": True, "broken": []}

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            (record(None), "1 requests of normal have no outcome"),
            (record("late"), "1 answers of normal were late"),
            (record("completed", 80.0), "1 answers of normal were late"),
        ],
    )
    def test_broken(self, bad, said):
        found = laws([phase_figures(NORMAL, [bad, record("completed")], 1.0, 9.0)])
        assert not found["kept"]
        assert said in found["broken"][0]

    def test_a_caller_that_is_held_up_itself_notes_ends_later(self):
        held_up = record("completed")
        held_up.sent_s += 0.04
        found = laws([phase_figures(NORMAL, [record("completed", 80.0), held_up], 1.0, 9.0)])
        assert found["kept"]


class TestRecovery:
    def test_results_flow_again_with_one_that_was_sent_after_the_kill(self):
        records = [
            record("completed", 90.0, sent_s=0.95),
            record("unavailable", 1.0, sent_s=1.1),
            record("completed", 500.0, sent_s=1.2),
            record("completed", 10.0, sent_s=1.8),
        ]
        found = recovery(Kill("cpu:0", 7, 1.0), records)
        assert found is not None
        assert found["results_again_s"] == pytest.approx(0.7)
        assert found["outcomes"] == {"unavailable": 1, "completed": 1}

    def test_they_may_not(self):
        found = recovery(Kill("cpu:0", 7, 1.0), [record("unavailable", sent_s=2.0)])
        assert found is not None
        assert found["results_again_s"] is None
        assert recovery(None, []) is None


class TestSummary:
    def figures(self, *records: Record):
        phases = [phase_figures(phase, records, 1.0, 5.0) for phase in PHASES]
        return {
            "phases": phases,
            "overload": {"fcfs": 0.125, "goodput": 0.97},
            "recovery": recovery(Kill("cpu:0", 7, 0.0), records),
            "laws": laws(phases),
            "left_over": 0,
        }

    @pytest.mark.parametrize(
        "records",
        [[], [record("completed", sent_s=0.5)], [record(None)], [record("infeasible", sent_s=1)]],
    )
    def test_it_fits_80_columns_whatever_happened(self, records):
        console = Console(file=StringIO(), width=80)
        console.print(summary(self.figures(*records), {p.name: p.title for p in PHASES}))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "12.5 %" in text
        assert "…" not in text
        assert ("Law broken" in text) == any(record.outcome is None for record in records)

    def test_a_share_is_never_rounded_to_all(self):
        assert [share(value) for value in (1.0, 0.9999, 0.5, None)] == (
            ["100.0 %", "99.99 %", "50.0 %", ""]
        )


class TestCores:
    @pytest.mark.parametrize(
        ("usable", "device"),
        [
            ([0], ()),
            ([0, 1], (1,)),
            ([0, 1, 2], (2,)),
            ([0, 1, 2, 3], (2, 3)),
            (list(range(16)), (14, 15)),
        ],
    )
    def test_the_device_leaves_cores_to_the_scheduler_and_the_generator(self, usable, device):
        assert device_cores(usable) == device
