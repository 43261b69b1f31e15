"""The laws under everything that can happen, in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies import POLICIES
from policies.hedge import Hedged
from replay.laws import Watch
from scheduler.core.events import (
    BatchDone,
    BatchFailed,
    Cancelled,
    Submitted,
    TargetChanged,
    TargetDown,
    TargetReport,
    TargetUp,
    TargetWithdrew,
    Woken,
)
from scheduler.core.limits import Limits
from scheduler.core.requests import Request, RequestClass
from scheduler.core.target_specs import TargetSpec
from tests.core.world import MS, offer, target

pytestmark = pytest.mark.no_cover

SPECS = (
    target("cpu:0", offer("a"), offer("b", item_ms=2), slots=2),
    target("gpu:0", offer("a", "int8", 0.5, 0.2, rank=1), offer("a", "fp32", 1, 0.5), slots=3),
    target("npu:0", offer("b", base_ms=0, item_ms=5, spread=0.3), slots=1),
    target("cpu:0", offer("a", base_ms=4, sizes=(1, 3))),
    target("gpu:1", offer("a", spread=0.9), offer("b", item_ms=3, spread=0.8), slots=2),
    TargetSpec(
        "eu",
        (offer("a", "fp32", item_ms=0.2), offer("b", item_ms=0.2)),
        slots=4,
        lead_ns=0,
        cost_per_s=0.1,
        remote=True,
        width=4,
        transfer_ns=(5 * MS, 0.0),
    ),
    TargetSpec(
        "box-b",
        (offer("a", sizes=(1,)), offer("c", sizes=(1,))),
        slots=3,
        remote=True,
        width=3,
        transfer_ns=(MS, 0.0),
        peer=True,
    ),
)
REPORTS = (offer("b", "v", 1, 1, (1, 2)), offer("a", "v", 3, 0.1), offer("c"))
VARIANTS = (("a", "v"), ("a", "int8"), ("a", "fp32"), ("b", "v"), ("c", "v"))
KINDS = (
    RequestClass("a"),
    RequestClass("b"),
    RequestClass("a", variant="int8"),
    RequestClass("a", shapes=((3, 3),)),
    RequestClass("c"),
    RequestClass("unknown"),
)
REQUESTS: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    kind=st.sampled_from(KINDS[:4] * 3 + KINDS),
    budget_ns=st.integers(-1, 60).map(lambda ms: ms * MS),
    priority=st.sampled_from((3, 3, 3, 0, 7)),
    weight=st.sampled_from((1.0, 1.0, 2.0, 0.5)),
    size_bytes=st.sampled_from((0, 10, 400)),
    accept_late=st.booleans(),
)
FACTORIES = {**POLICIES, "eager": lambda: Hedged(extra=1.0, early_ms=1_000)}
"""Beside the policies one that sends second copies whenever it can."""
POLICY = st.sampled_from(sorted(FACTORIES))
PICK = st.integers(0, 1_000)


class Box(RuleBasedStateMachine):
    """A box on which anything may happen at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.watch = Watch(POLICIES["edf"])
        self.now_ns = 0
        self.next_id = 1

    @initialize(policy=POLICY, up=st.integers(1, 3))
    def begin(self, policy: str, up: int) -> None:
        self.watch = Watch(FACTORIES[policy], Limits(requests=20, bytes=3_000, attempts=2))
        for spec in SPECS[:up]:
            self.watch.handle(TargetUp(spec), 0)

    # -- what callers do

    @rule(wanted=st.lists(REQUESTS, min_size=1, max_size=6))
    def submit(self, wanted: list[dict[str, Any]]) -> None:
        requests = []
        for fields in wanted:
            fields = dict(fields)
            deadline_ns = max(0, self.now_ns + fields.pop("budget_ns"))
            requests.append(Request(self.next_id, deadline_ns=deadline_ns, **fields))
            self.next_id += 1
        self.watch.handle(Submitted(tuple(requests)), self.now_ns)

    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        self.watch.handle(Cancelled(pick % self.next_id), self.now_ns)

    # -- what targets do

    def _run(self, pick: int) -> int:
        runs = sorted(self.watch.scheduler.runs)
        return runs[pick % len(runs)]

    @precondition(lambda self: self.watch.scheduler.runs)
    @rule(pick=PICK, bad=st.sets(st.integers(0, 7), max_size=2))
    def finish_batch(self, pick: int, bad: set[int]) -> None:
        run_id = self._run(pick)
        ids = self.watch.scheduler.runs[run_id].request_ids
        errors = {ids[i]: "bad item" for i in bad if i < len(ids)}
        self.watch.handle(BatchDone(run_id, errors), self.now_ns)

    @precondition(lambda self: self.watch.scheduler.runs)
    @rule(pick=PICK, started=st.booleans())
    def fail_batch(self, pick: int, started: bool) -> None:
        self.watch.handle(BatchFailed(self._run(pick), "broken", started), self.now_ns)

    @rule(spec=st.sampled_from(SPECS))
    def target_up(self, spec) -> None:
        self.watch.handle(TargetUp(spec), self.now_ns)

    @precondition(lambda self: self.watch.scheduler.targets)
    @rule(pick=PICK, back_ms=st.none() | st.integers(0, 50))
    def target_down(self, pick: int, back_ms: int | None) -> None:
        names = sorted(self.watch.scheduler.targets)
        back_ns = None if back_ms is None else back_ms * MS
        self.watch.handle(TargetDown(names[pick % len(names)], "gone", back_ns), self.now_ns)

    @precondition(lambda self: self.watch.scheduler.targets)
    @rule(pick=PICK, news=st.sampled_from(REPORTS))
    def target_report(self, pick: int, news) -> None:
        names = sorted(self.watch.scheduler.targets)
        self.watch.handle(TargetReport(names[pick % len(names)], (news,)), self.now_ns)

    @precondition(lambda self: self.watch.scheduler.targets)
    @rule(pick=PICK, gone=st.sets(st.sampled_from(VARIANTS), min_size=1, max_size=3))
    def target_withdrew(self, pick: int, gone: set[tuple[str, str]]) -> None:
        names = sorted(self.watch.scheduler.targets)
        event = TargetWithdrew(names[pick % len(names)], tuple(sorted(gone)), "replaced")
        self.watch.handle(event, self.now_ns)

    @precondition(lambda self: self.watch.scheduler.targets)
    @rule(pick=PICK, slots=st.integers(1, 4), closed_ms=st.integers(0, 30), is_small=st.booleans())
    def target_changed(self, pick: int, slots: int, closed_ms: int, is_small: bool) -> None:
        targets = self.watch.scheduler.targets
        spec = targets[sorted(targets)[pick % len(targets)]].spec
        changed = replace(
            spec,
            slots=slots,
            width=min(spec.width, slots),
            cost_per_request=slots,
            too_large=(("a", ()),) if is_small else (),
        )
        self.watch.handle(TargetChanged(changed, closed_ms * MS), self.now_ns)

    # -- what the owner does

    @rule(policy=POLICY)
    def swap_policy(self, policy: str) -> None:
        self.watch.swap(FACTORIES[policy], self.now_ns)

    # -- what time does

    @rule(us=st.integers(0, 20_000))
    def pass_time(self, us: int) -> None:
        """The next event comes later; perhaps later than the wake-up that was asked for."""
        self.now_ns += us * 1_000

    @precondition(lambda self: self.watch.scheduler.alarm.armed_ns is not None)
    @rule()
    def wake_when_asked(self) -> None:
        self.now_ns = max(self.now_ns, self.watch.scheduler.alarm.armed_ns or 0)
        self.watch.handle(Woken(), self.now_ns)

    @precondition(lambda self: any(self.watch.scheduler.pending()))
    @rule(after_ns=st.sampled_from((0, 1)))
    def wake_at_a_deadline(self, after_ns: int) -> None:
        soonest_ns = min(r.deadline_ns for r in self.watch.scheduler.pending())
        self.now_ns = max(self.now_ns, soonest_ns + after_ns)
        self.watch.handle(Woken(), self.now_ns)

    @invariant()
    def state_is_valid(self) -> None:
        self.watch.scheduler.validate()

    def teardown(self) -> None:
        self.watch.close()


TestLaws = Box.TestCase
TestLaws.settings = settings(
    max_examples=250,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
