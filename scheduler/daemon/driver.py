"""The shell around the core: feeds it events and the time, and carries out its commands."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from scheduler.core.commands import CancelRun, Command, Dispatch, Finish, WakeAt
from scheduler.core.errors import PolicyFailed, meddled
from scheduler.core.events import (
    BY_CALLER,
    BatchDone,
    BatchFailed,
    Cancelled,
    Event,
    PolicySwapped,
    Submitted,
    TargetChanged,
    TargetDown,
    TargetReport,
    TargetUp,
    TargetWithdrew,
    Woken,
)
from scheduler.core.limits import Limits
from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.core.policy import Policy
from scheduler.core.requests import Request
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec, reached_over
from scheduler.daemon.answering import Pending, Results, answer_of
from scheduler.daemon.asyncio_tasks import end_tasks, start_task
from scheduler.daemon.background import Background
from scheduler.daemon.catalog import Catalog
from scheduler.daemon.doubts import Doubts
from scheduler.daemon.energy import EnergyAccount
from scheduler.daemon.journal import Journal
from scheduler.daemon.link import LinkedTarget, Ran, TargetLink
from scheduler.daemon.padding import Padder
from scheduler.daemon.shared_bodies import SharedBodies
from scheduler.daemon.status import status_of
from scheduler.daemon.submission import Submission
from scheduler.daemon.worker_link import WorkerLink
from scheduler.policy_loading import FALLBACK, NamedPolicy, load_policy
from workers.link import ModelCard, Packed

SHUT_DOWN = "the box shut down before it was done"
"""Why requests are cancelled that a drain has no time for."""

_TICK_S = 0.001
"""Resolution of the event loop's timers."""

_LATE_NS = 500_000
"""How much later than planned a batch may be sent: timers are coarse, and deciding takes time."""

log = structlog.get_logger()


class Driver:
    """Runs one scheduler on the current event loop.

    Args:
        policy: The first policy.
        limits: Limits on what may be held.
        clock_ns: The monotonic clock.
        journal: Records each event and its commands.
        cost_per_kwh: Price of energy.
        first: The first policy, if it is already loaded.
        shared: The bodies that workers can read where they are; None if all are sent to them.

    Attributes:
        policy: The policy in use.
        fell_back: Which policy failed and how, while the default stands in for it; else None.
        catalog: The models of the box.
        core: The state machine.
        clock_ns: The monotonic clock.
        after_event: Called after each event and its commands, e.g. to send answers.
        shared: The bodies that workers can read where they are.
        background: Work that ranks below all requests; None while there is none.
        on_broken: Called with the reason if the policy has made the core's state contradict itself,
            so that it must start anew.
    """

    def __init__(
        self,
        policy: NamedPolicy = FALLBACK,
        limits: Limits = Limits(),  # noqa: B008
        clock_ns: Callable[[], int] = time.monotonic_ns,
        journal: Journal | None = None,
        cost_per_kwh: float = 0.0,
        first: Policy | None = None,
        shared: SharedBodies | None = None,
    ) -> None:
        """Holds nothing and has no devices."""
        self.policy = policy
        self.fell_back: str | None = None
        self._swaps = 0
        self.catalog = Catalog()
        self._padder = Padder(self.catalog)
        made = load_policy(policy.name, **policy.options) if first is None else first
        self.core = Scheduler(made, limits)
        self.clock_ns = clock_ns
        self.after_event: Callable[[], None] = lambda: None
        self.background: Background | None = None
        self.on_broken: Callable[[str], None] = lambda why: None
        self.shared = shared
        self._journal = journal
        self._energy = EnergyAccount(cost_per_kwh)
        self._loop = asyncio.get_running_loop()
        self._upkeep: list[asyncio.Task[None]] = []
        if shared is not None:
            self._upkeep.append(start_task(shared.keep_tidy(), "the upkeep of shared memory"))
        self._linked: dict[str, LinkedTarget] = {}
        self._doubts = Doubts()
        self._pending: dict[int, Pending] = {}
        self._runs: dict[int, Dispatch] = {}
        self._results: dict[int, Results] = {}
        self._next_id = 1
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._drained = False

    # -- targets

    def add_device(self, device_id: str, path: Path) -> None:
        """Connects to the worker of a device, and reconnects whenever it is lost."""
        self.add_target(device_id, WorkerLink(device_id, path, self, self.shared))

    def has_target(self, target_id: str) -> bool:
        """Whether this target id is taken."""
        return target_id in self._linked

    def add_target(self, target_id: str, link: TargetLink) -> None:
        """Lets a link connect to its target, and reconnect whenever it is lost."""
        task = start_task(link.keep_connected(), f"the link to {target_id}")
        self._linked[target_id] = LinkedTarget(link, task)

    async def remove_target(self, target_id: str, reason: str) -> None:
        """Removes a target for good; requests it was running go elsewhere or end."""
        linked = self._linked.pop(target_id)
        if target_id in self.core.targets:
            self._lose(TargetDown(target_id, reason, blameless=True, removed=True))
        self.catalog.forget(target_id)
        self._energy.forget(target_id)
        self._doubts.forget(target_id)
        await linked.close()

    def on_way(self, target_id: str, transfer_ns: tuple[int, float]) -> None:
        """Records the transfer time of a device that is remote, or emulates a remote one."""
        self._linked[target_id].transfer_ns = transfer_ns

    def on_handover(self, target_id: str, handover_ns: int) -> None:
        """Sets how long before a device is free its next batch is sent."""
        if self._is_up(target_id):
            target = self.core.targets[target_id]
            lead_ns = max(handover_ns, target.spec.transfer_ns[0]) + _LATE_NS
            self._handle(TargetChanged(replace(target.spec, offers=(), lead_ns=lead_ns)))

    def on_catalog(
        self, target_id: str, cards: list[ModelCard], problems: list[Any], own: bool = True
    ) -> None:
        """Learns the models; those of a device that is not up yet are expected of it."""
        told = self.catalog.problems.get(target_id, [])
        if own:
            for news, model in self.catalog.news(target_id, cards, self._is_up(target_id)):
                log.info(news, target=target_id, model=model)
        self.catalog.learn(target_id, cards, problems, own)
        for model, reason in (problem for problem in problems if problem not in told):
            log.warning("problem with a model", target=target_id, model=model, reason=reason)
        if own and cards:
            self._expect(target_id)

    def on_offer(self, target_id: str, offer: Offer) -> None:
        """Adds a variant that the device can run."""
        self._expect(target_id)
        self._learn_offers(target_id, (offer,))
        self._handle(TargetReport(target_id, (offer,)))

    def _expect(self, target_id: str) -> None:
        """Brings a device up, unless it is, to report what its catalog lists."""
        if not self._is_up(target_id):
            spec = reached_over(TargetSpec(target_id), *self._linked[target_id].transfer_ns)
            self.on_up(spec, self.catalog.variants(target_id))

    def _is_up(self, target_id: str) -> bool:
        target = self.core.targets.get(target_id)
        return target is not None and target.up

    def on_up(self, spec: TargetSpec, awaited: Iterable[tuple[str, str]] = ()) -> None:
        """A target is up; besides what `spec` offers, it may report these models and variants."""
        self.catalog.forget_offers(spec.id)
        self._learn_offers(spec.id, spec.offers)
        self._linked[spec.id].found(self.clock_ns())
        self._handle(TargetUp(self._energy.priced(spec), tuple(awaited)))

    def on_changed(self, spec: TargetSpec, closed_ns: int = 0) -> None:
        """Updates a target that is up."""
        self._learn_offers(spec.id, spec.offers)
        self._handle(TargetChanged(self._energy.priced(spec), closed_ns))

    def on_withdrawn(
        self, target_id: str, variants: Sequence[tuple[str, str]], reason: str
    ) -> None:
        """A target no longer offers some variants; its runs of them go on."""
        self.catalog.withdraw(target_id, variants)
        if self._is_up(target_id):
            self._handle(TargetWithdrew(target_id, tuple(variants), reason))

    def _learn_offers(self, target_id: str, offers: Iterable[Offer]) -> None:
        for offer in offers:
            self.catalog.add_offer(target_id, offer)
            self._energy.learn(target_id, offer)

    def on_progress(self, target_id: str, done: int, total: int, text: str) -> None:
        """Records how far a target has got in becoming ready."""
        self._linked[target_id].progress = (done, total, text)
        if done >= total > 0 and self._is_up(target_id) and self.core.targets[target_id].awaited:
            self._handle(TargetReport(target_id, ()))

    def on_telemetry(self, target_id: str, reading: dict[str, Any]) -> None:
        """Records a device's load, memory, power and the like."""
        self._linked[target_id].telemetry = reading

    def on_done(
        self,
        run_id: int,
        results: list[Packed | str],
        execute_ns: int,
        notes: Mapping[str, Any] | None = None,
        ran: Ran | None = None,
    ) -> None:
        """Reports a finished run to the core, and gives the callers their outputs."""
        dispatch = self._runs.pop(run_id)
        if self._energy.offers:
            self._energy.count(dispatch)
        outputs: dict[int, Packed] = {}
        errors: dict[int, str] = {}
        for request_id, result in zip(dispatch.request_ids, results, strict=True):
            if isinstance(result, str):
                errors[request_id] = result
            else:
                outputs[request_id] = result
        offer = self.core.runs[run_id].offer
        place, model = dispatch.target_id, dispatch.model
        digest = self.catalog.digest(place, model) if ran is None else ran.digest
        self._results[run_id] = Results(
            dispatch, offer, outputs, execute_ns, notes or {}, ran, digest
        )
        self._handle(BatchDone(run_id, errors))
        del self._results[run_id]

    def on_not_run(self, run_id: int, reason: str) -> None:
        """The target skipped a run."""
        del self._runs[run_id]
        self._handle(BatchFailed(run_id, reason, started=False))

    def on_failed(self, run_id: int, reason: str) -> None:
        """The target tried a run and failed."""
        del self._runs[run_id]
        self._handle(BatchFailed(run_id, reason))

    def on_lost(self, target_id: str, reason: str, blameless: bool = False) -> None:
        """A target and its runs are lost for now."""
        linked = self._linked.get(target_id)
        if linked is None:
            return
        # Ray restarts a lost worker; a target behind a broken link is only unreachable.
        linked.progress = (0, 0, reason if blameless else "restarting")
        if self._is_up(target_id):
            if not self._drained:  # once drained, the whole box is shutting down
                log.warning("target lost", target=target_id, reason=reason)
            self._lose(TargetDown(target_id, reason, linked.away_ns, blameless))
            linked.lost_ns = self.clock_ns()

    def _lose(self, event: TargetDown) -> None:
        for run_id in self.core.targets[event.target_id].runs:
            del self._runs[run_id]
        self._handle(event)

    # -- requests

    def submit(self, submissions: list[Submission]) -> list[int]:
        """Submits requests in this order and returns their ids; each is answered exactly once."""
        room_bytes = self.core.limits.bytes - self.core.ledger.held_bytes
        submissions = self._padder.padded(submissions, room_bytes)
        if self.background is not None:
            self.background.make_way(submissions)
        now_ns = self.clock_ns()
        requests = []
        for submission in submissions:
            request = Request(
                self._next_id,
                submission.kind,
                submission.deadline_ns,
                submission.priority,
                submission.weight,
                len(submission.body),
                submission.accept_late,
            )
            self._pending[request.id] = Pending(submission, now_ns)
            requests.append(request)
            self._next_id += 1
        self._idle.clear()
        self._handle(Submitted(tuple(requests)))
        return [request.id for request in requests]

    def cancel(self, request_id: int, reason: str = BY_CALLER) -> None:
        """Cancels a request, unless it has ended."""
        if request_id in self._pending:
            self._handle(Cancelled(request_id, reason))

    def swap_policy(self, name: str, options: dict[str, Any]) -> None:
        """Loads another policy, which decides from now on.

        Raises:
            ValueError: There is no such policy or option; the old policy stays.
        """
        self.take_policy(load_policy(name, **options), name, options)

    def take_policy(self, policy: Policy, name: str, options: dict[str, Any]) -> None:
        """Switches to a policy that is already loaded, for callers that can't wait for loading."""
        self.policy = NamedPolicy(name, options)
        self.fell_back = None
        self._swaps += 1
        self._handle(PolicySwapped(name, policy))
        log.info("policy swapped", policy=name, options=options)

    def _fall_back(self, failed: NamedPolicy, why: str) -> None:
        if self.policy is failed:  # it may have been swapped meanwhile
            self.swap_policy(*FALLBACK)
            self.fell_back = why

    async def drain(self, seconds: float) -> int:
        """Waits until no request is held, cancels those left, and returns how many were left."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        left = list(self._pending)
        for request_id in left:
            self.cancel(request_id, SHUT_DOWN)
        self._drained = True
        return len(left)

    async def close(self) -> None:
        """Hangs up on the targets."""
        if self._timer is not None:
            self._timer.cancel()
        for linked in list(self._linked.values()):  # another box may tell of a third meanwhile
            await linked.close()
        await end_tasks(self._upkeep)

    # -- the core

    def _handle(self, event: Event) -> None:
        failure: str | None = None
        try:
            commands = self.core.handle(event, self.clock_ns())
        except PolicyFailed as failed:
            failure = str(failed)
            log.error("policy failed", policy=self.policy.name, error=failure)
            commands = failed.commands
            self._judge(failed)
            if self.policy != FALLBACK:
                why = f"{self.policy.name}: {failure}"
                self._loop.call_soon(self._fall_back, self.policy, why)
        except Exception as error:
            self._judge(error)
            raise
        try:
            for command in commands:
                self._obey(command)
            if not self._pending:
                self._idle.set()
            self.after_event()
            if self.background is not None:
                self.background.look()
        finally:
            # The journal comes last: batches and answers are more urgent.
            if self._journal is not None:
                self._journal.note(self.core.now_ns, event, commands, self.policy, failure)

    def _judge(self, fault: Exception) -> None:
        """Gives the state up if the policy has changed it behind the core's back.

        Args:
            fault: What the policy or the core has raised.
        """
        if self.policy == FALLBACK:
            return
        told = meddled(fault, self.core.validate)
        if told is not None:
            why = f"{self.policy.name}: {told}"
            log.error("the scheduler ends, to start anew without its policy", why=why)
            self.on_broken(why)

    def _obey(self, command: Command) -> None:
        match command:
            case Dispatch():
                self._dispatch(command)
            case Finish():
                self._finish(command)
            case CancelRun(run_id):
                if run_id in self._runs:
                    self._linked[self._runs[run_id].target_id].link.cancel(run_id)
            case WakeAt(at_ns):
                self._wake_at(at_ns)

    def _dispatch(self, dispatch: Dispatch) -> None:
        self._runs[dispatch.run_id] = dispatch
        batch = [self._pending[request_id].submission for request_id in dispatch.request_ids]
        self._linked[dispatch.target_id].link.run(dispatch, batch)

    def _finish(self, finish: Finish) -> None:
        submission, arrived_ns = self._pending.pop(finish.request_id)
        results = None if finish.run_id is None else self._results[finish.run_id]
        if results is None and finish.outcome is Outcome.INFEASIBLE:
            self._doubt(submission)
        try:
            submission.reply(answer_of(finish, results, self.core.now_ns - arrived_ns))
        except Exception:  # a mistake in a door must not cost others their answers
            log.exception(
                "an answer could not be given",
                request=finish.request_id,
                outcome=finish.outcome.value,
            )

    def _doubt(self, refused: Submission) -> None:
        """Has a target measured again if it could have run the request but was not used."""
        doubted = self._doubts.refused(refused, self.core.targets.values(), self.core.now_ns)
        if doubted is not None:
            target_id, offer = doubted
            log.info(
                "requests are refused because of a measured latency: measuring again",
                target=target_id,
                model=offer.model,
                variant=offer.variant,
            )
            self._linked[target_id].link.measure_again(offer, refused)

    def _wake_at(self, at_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(_TICK_S, (at_ns - self.clock_ns()) / 1e9)
        self._timer = self._loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._handle(Woken())

    # -- inspection

    def own_models(self) -> list[str]:
        """The names of the models that devices of this box serve."""
        own = [t.offers for t in self.core.targets.values() if not t.spec.remote]
        return sorted({model for offers in own for model in offers} & self.catalog.cards.keys())

    def status(self) -> dict[str, Any]:
        """The scheduler's state and how requests ended, for people and programs."""
        told = status_of(self.core, self.policy, self._linked, self._energy, self.clock_ns())
        return {**told, "policy_problem": self.fell_back, "policy_swaps": self._swaps}
