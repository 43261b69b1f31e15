"""`TargetLink` for clouds: a server of the Open Inference Protocol as a target."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import structlog

from scheduler.backoff import Backoff
from scheduler.config.cloud import CloudConfig
from scheduler.config.problems import ConfigError
from scheduler.core.commands import Dispatch
from scheduler.core.offers import Offer
from scheduler.daemon.asyncio_tasks import end_tasks
from scheduler.daemon.catalog import Catalog
from scheduler.daemon.cloud.batch import SentBatch
from scheduler.daemon.cloud.endpoint import Endpoint, Fault, Inferred, RemoteError
from scheduler.daemon.cloud.finding import Finder, FoundModels
from scheduler.daemon.cloud.latencies import Latencies, LatencyFile
from scheduler.daemon.cloud.mixed_up import mixed_up
from scheduler.daemon.cloud.pace import ProbePace
from scheduler.daemon.cloud.standing import Standing
from scheduler.daemon.cloud.tensors import CloudModel, split
from scheduler.daemon.cloud.till import Till
from scheduler.daemon.cloud.watch import Watch
from scheduler.daemon.link import LinkListener
from scheduler.daemon.submission import Submission
from scheduler.daemon.ways.breaker import Breaker
from scheduler.daemon.ways.giving_up import is_early
from scheduler.daemon.ways.meter import WayMeter
from scheduler.daemon.ways.purse import Purse
from scheduler.daemon.ways.shrinking import shrunk_note
from workers.link import ModelCard, Packed

log = structlog.get_logger()

TRIP_AFTER = 3
"""Failures in a row that open the breaker; a lost connection opens it at once."""

_FIRST_WAIT_NS, _LONGEST_WAIT_NS = 100_000_000, 5_000_000_000
"""First and longest time that a breaker stays open, both upper bounds."""

_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS = 10_000_000, 2_000_000_000
"""The same for pauses after a refusal."""


class CloudLink:
    """One server; implements `TargetLink`.

    Args:
        config: The server's address and costs.
        endpoint: The connection to it.
        catalog: The models of the box.
        purse: Pays for inferences.
        memory: Keeps latencies for the next start.
        listener: Receives the reports of this link.
        headers: The headers of every call, asked for whenever the server's models are.
    """

    def __init__(
        self,
        config: CloudConfig,
        endpoint: Endpoint,
        catalog: Catalog,
        purse: Purse,
        memory: LatencyFile,
        listener: LinkListener,
        headers: Callable[[], Mapping[str, str]],
    ) -> None:
        """Not connected yet; see `keep_connected`."""
        self._config = config
        self._id = config.name
        self._endpoint = endpoint
        self._catalog = catalog
        self._till = Till(config, purse)
        self._memory = memory
        self._listener = listener
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self._meter = WayMeter(8e3 / config.bandwidth_mbps if config.bandwidth_mbps else 0.0)
        self._pace = ProbePace(config.probe_s, self._meter)
        # Each box has its own seed, so that boxes do not retry in step.
        chance = Random(f"{config.name}@{socket.gethostname()}")
        self._breaker = Breaker(TRIP_AFTER, Backoff(_FIRST_WAIT_NS, _LONGEST_WAIT_NS, chance))
        self._standing = Standing(config, self._breaker, self._meter, self._till, listener)
        self._retries = Backoff(_FIRST_WAIT_NS, _LONGEST_WAIT_NS, chance)
        self._pauses = Backoff(_FIRST_PAUSE_NS, _LONGEST_PAUSE_NS, chance)
        self._looks = Backoff(_FIRST_WAIT_NS, _LONGEST_WAIT_NS, chance)
        self._finder = Finder(config, endpoint, self._meter, self._till)
        self._runs: dict[int, SentBatch] = {}
        self._watch = Watch(
            endpoint,
            self._finder,
            self._breaker,
            self._meter,
            self._pace,
            self._standing,
            self._under_way,
            self._withdraw,
        )
        self._measuring: asyncio.Task[None] | None = None
        self._problems: list[tuple[str, str]] = []
        self._gone = self._why_not = self._hint = ""
        self._is_out = self._was_found = False
        self._served: set[str] = set()
        self._answered_ns = 0

    # -- TargetLink

    async def keep_connected(self) -> None:
        """Finds the server's models, and again whenever they have changed, until cancelled."""
        known = self._memory.read()
        try:
            while True:
                try:
                    await self._find(known)
                    self._retries.reset()
                    await self._watch_and_find_more()
                    latencies = self._standing.latencies
                    known = {n: each.measured() for n, each in latencies.items() if n != self._gone}
                    await asyncio.sleep(self._looks.next_ns() / 1e9)
                except RemoteError as error:
                    if str(error) != self._why_not:  # log a persistent problem once
                        self._why_not = str(error)
                        self._hint = "" if self._was_found else await mixed_up(self._config.url)
                        log.warning("cloud not used", target=self._id, reason=self._told(error))
                    await self._wait_to_retry(self._told(error))
                except Exception as error:  # a bug here must not cost the box its target
                    log.error("cloud link failed", target=self._id, exc_info=error)
                    self._forget_runs()
                    self._listener.on_lost(self._id, repr(error), blameless=True)
                    await self._wait_to_retry(repr(error))
        finally:
            self._forget_runs()
            await end_tasks([self._measuring] if self._measuring else [])
            await self._endpoint.close()

    def _told(self, error: RemoteError) -> str:
        return f"{self._hint} ({error})" if self._hint else str(error)

    async def _wait_to_retry(self, why: str) -> None:
        self._listener.on_progress(self._id, 0, 0, why)
        await asyncio.sleep(self._retries.next_ns() / 1e9)
        self._endpoint.reconnect()

    def run(self, dispatch: Dispatch, batch: Sequence[Submission]) -> None:
        """Sends a batch."""
        sent_ns = time.monotonic_ns()
        run = SentBatch(dispatch, batch, sent_ns, len(self._runs) + 1)
        longest_ns = self._standing.latencies[dispatch.model].longest_ns(len(batch))
        slack_ns = self._meter.slow_round_trip_ns - self._meter.round_trip_ns
        run.patience_ns = self._meter.both_ways_ns(run.size_bytes) + longest_ns + slack_ns
        self._runs[dispatch.run_id] = run
        self._pace.sent(sent_ns)
        run.task = self._loop.create_task(self._carry(run))
        run.timer = self._loop.call_later(run.patience_ns / 1e9, self._look_out, run)

    def cancel(self, run_id: int) -> None:
        """Stops a run and tells the server."""
        run = self._runs.get(run_id)
        if run is not None:
            run.stop()
            self._loop.call_soon(self._end_cancelled, run)

    def measure_again(self, offer: Offer, refused: Submission) -> None:
        """Sends zeros in the shapes of the refused request, at the normal price."""
        latencies = self._standing.latencies[offer.model]
        if not self._measuring or self._measuring.done():
            self._measuring = self._loop.create_task(self._measure_again(latencies, refused))

    async def _measure_again(self, latencies: Latencies, refused: Submission) -> None:
        try:
            await self._finder.measure_again(latencies, refused)
        except (RemoteError, ValueError) as error:
            log.info("cloud not measured again", target=self._id, reason=str(error))
        else:
            self._standing.offer_anew()

    def close(self) -> None:
        """Saves spending and latencies; `keep_connected` hangs up when it ends."""
        self._till.close()
        if self._standing.latencies:
            self._memory.write(self._standing.latencies.values())

    def describe(self) -> dict[str, Any]:
        """The state of the server and of the way there."""
        return {
            "url": self._config.url,
            "breaker": self._breaker.describe(),
            "limit": self._standing.limit.value,
            "way": self._meter.describe(),
            "shrunk": self._standing.describe_shrunk(),
            "spending": self._till.describe(),
            "too_large": self._standing.too_large.describe(),
        }

    # -- finding and watching the server

    async def _find(self, known: dict[str, dict[int, list[int]]]) -> None:
        await self._catalog.spoken.wait()
        self._listener.on_progress(self._id, 0, 1, "looking at the server")
        try:
            self._endpoint.show(self._headers())  # the token may have been replaced
        except ConfigError as error:
            raise RemoteError(Fault.UNKNOWN_CALLER, str(error)) from None
        found = await self._finder.find(self._catalog.cards, known)
        self._watch.begin()
        self._served.clear()
        self._problems = found.problems
        self._listener.on_catalog(self._id, [], found.problems)
        self._memory.write(found.latencies.values())
        self._why_not = self._hint = ""
        self._was_found = True
        log.info("cloud ready", target=self._id, models=sorted(found.latencies))
        self._standing.begin(found.latencies)
        self._listener.on_progress(self._id, 1, 1, "ready")

    async def _watch_and_find_more(self) -> None:
        finding = self._loop.create_task(self._finder.keep_finding(self._missing, self._looked))
        try:
            await self._watch.keep()
        finally:
            await end_tasks([finding])

    def _looked(self, model: str, found: FoundModels) -> None:
        problems = [each for each in self._problems if each[0] != model] + found.problems
        if set(problems) != set(self._problems):
            self._problems = problems
            self._listener.on_catalog(self._id, [], problems)
        if found.latencies:
            self._standing.extend(found.latencies)

    def _missing(self) -> list[ModelCard]:
        """The models not found so far; none while the breaker is open."""
        cards, known = self._catalog.cards.values(), self._standing.latencies
        return [] if self._watch.is_open else [card for card in cards if card.name not in known]

    def _under_way(self) -> int:
        return sum([run.size_bytes for run in self._runs.values()])

    def _look_out(self, run: SentBatch) -> None:
        """Called when a batch is overdue; probes the server if it has been silent for too long."""
        if run.id not in self._runs:
            return
        silent_ns = time.monotonic_ns() - max(self._watch.heard_ns, run.sent_ns)
        if silent_ns >= run.patience_ns:
            self._watch.suspect()
        wait_ns = max(run.patience_ns - silent_ns, int(self._pace.patience_s() * 1e9))
        run.timer = self._loop.call_later(wait_ns / 1e9, self._look_out, run)

    # -- one batch

    async def _carry(self, run: SentBatch) -> None:
        """Sends a batch, waits for the answer, and reports the result."""
        model = self._standing.latencies[run.dispatch.model].model
        if self._catalog.cards[model.card.name].signature != model.card.signature:
            self._gone = model.card.name
            self._find_again(f"{self._id}: {self._gone!r} has other tensors on the box now")
            return
        timeout_s = run.timeout_s(self._config.timeout_s)
        least_s = min(timeout_s, run.patience_ns / 1e9)
        timeout_s = max(least_s, self._till.affordable_s(len(run.requests), timeout_s))
        if not self._till.pay(len(run.requests), timeout_s):
            self._not_paid(run, least_s)
            return
        is_sent = False
        try:
            if self._till.close_if_spent(self._settled_ns()):
                self._standing.tell()
                await asyncio.sleep(0)  # the core may just have cancelled this very batch
            await run.shrink(model)
            inference = run.inference(model, timeout_s, self._meter.back_ns)
            is_sent = True
            inferred = await self._endpoint.infer(inference)
            results = split(model, inferred.outputs, len(run.requests))
        except RemoteError as error:
            if run.id in self._runs:  # else it was withdrawn meanwhile
                self._came_to_nothing(run, error, timeout_s)
        except Exception as error:  # a bug here must not hold the batch for ever
            log.error("cloud link failed", target=self._id, exc_info=error)
            self._end(run)
            self._listener.on_failed(run.id, f"{self._id}: {error!r}")
        else:
            self._came_back(run, model, inferred, list(results), timeout_s)
        finally:
            if not is_sent:
                took_ns = time.monotonic_ns() - run.sent_ns
                self._till.give_back(len(run.requests), timeout_s, took_ns)

    def _not_paid(self, run: SentBatch, least_s: float) -> None:
        self._end(run)
        kind, settled_ns = run.requests[0].kind, self._settled_ns()
        why = self._till.keep_back(kind, len(run.requests), least_s, settled_ns)
        self._standing.tell_unpaid()
        self._listener.on_not_run(run.id, f"{self._id}: {why}")

    def _settled_ns(self) -> int | None:
        """How long until a payment may be settled; None if no payment is open."""
        now_ns = time.monotonic_ns()
        due_ns = [run.sent_ns + run.patience_ns for run in self._runs.values()]
        if self._finder.settled_ns:
            due_ns.append(self._finder.settled_ns)
        # If it is overdue, wait as long again.
        return abs(min(due_ns) - now_ns) if due_ns else None

    def _came_back(
        self,
        run: SentBatch,
        model: CloudModel,
        inferred: Inferred,
        results: list[Packed | str],
        timeout_s: float,
    ) -> None:
        now_ns = self._answered_ns = time.monotonic_ns()
        self._watch.heard()
        size, work_ns = run.learn(model, inferred)
        took_ns, there_ns = max(0, now_ns - run.sent_ns - work_ns), inferred.there_ns
        if there_ns is not None:
            there_ns = max(0, min(there_ns - inferred.restore_ns, took_ns))
        self._end(run)
        self._till.settle(timeout_s, now_ns - run.sent_ns)
        way_ns = None if there_ns is None else took_ns - there_ns
        if self._meter.carried(inferred.sent, inferred.received, way_ns, now_ns - took_ns):
            self._watch.felt()
        left_ns = max(1, took_ns - self._meter.both_ways_ns(size))
        execute_ns = left_ns if there_ns is None else there_ns
        count = len(run.requests)
        self._standing.learn(run.dispatch.model, count, left_ns, execute_ns, run.in_flight)
        self._pauses.reset()
        self._looks.reset()
        self._served.add(run.dispatch.model)
        closed = self._breaker.succeeded()
        notes = inferred.notes if run.shrunk is None else shrunk_note(run.dispatch)
        self._listener.on_done(run.id, results, execute_ns, notes)
        if closed:
            self._is_out = False
            log.info("cloud breaker closed", target=self._id)
            self._standing.open()
        else:
            self._standing.tell_changes()

    def _came_to_nothing(self, run: SentBatch, error: RemoteError, timeout_s: float) -> None:
        """Ends a batch without results, and handles each kind of fault."""
        run_id, reason = run.id, f"{self._id}: {error}"
        self._end(run)
        took_ns = time.monotonic_ns() - run.sent_ns
        self._till.settle_failed(error, len(run.requests), timeout_s, took_ns)
        match error.fault:
            case Fault.REFUSED:
                self._pause(error.retry_after_s)
                self._listener.on_not_run(run_id, reason)
            case Fault.EXPIRED:
                self._watch.heard()
                if is_early(took_ns, timeout_s * 1e9):
                    self._pause(error.retry_after_s)
                self._listener.on_not_run(run_id, reason)
            case Fault.UNREACHABLE:
                self._watch.trip(reason)
                self._listener.on_not_run(run_id, reason)
            case Fault.SILENT:
                self._watch.failed(reason)
                self._listener.on_not_run(run_id, reason)
            case Fault.TOO_LARGE:
                self._watch.heard()
                self._standing.refused_size(run.requests[0].kind, len(run.requests))
                self._listener.on_not_run(run_id, reason)
            case Fault.GONE | Fault.UNKNOWN_CALLER:
                # A model may be described but not served; a trial will show.
                model = run.dispatch.model
                is_new = error.fault is Fault.UNKNOWN_CALLER or model in self._served
                self._gone = "" if is_new else model
                self._find_again(reason)
            case Fault.INVALID:
                # The core retries each request alone, so that a bad one fails alone.
                self._listener.on_failed(run_id, reason)
            case Fault.FAILED:
                self._watch.failed(reason)
                self._listener.on_failed(run_id, reason)

    def _find_again(self, reason: str) -> None:
        """Takes all batches back until the server's models have been found again."""
        self._watch.outdate()
        self._forget_runs()
        self._listener.on_lost(self._id, reason, blameless=True)

    def _pause(self, after_s: float | None) -> None:
        """The server is overloaded: lowers the limit, and sends nothing for a while."""
        self._standing.limit.dropped()
        pause_ns = after_s * 1e9 if after_s else self._pauses.next_ns()
        self._standing.close_for(int(min(pause_ns, _LONGEST_PAUSE_NS)))  # inf for many digits

    def _withdraw(self, reason: str) -> None:
        """Takes all batches back, because the breaker has opened."""
        if not self._is_out:  # each trial that fails opens it again, for days if need be
            self._is_out = True
            log.warning("cloud breaker opened", target=self._id, reason=reason)
        for run in self._forget_runs():
            self._listener.on_not_run(run.id, reason)

    # -- the end of a batch

    def _end(self, run: SentBatch) -> None:
        """Forgets a batch whose end is about to be reported."""
        if run.timer is not None:
            run.timer.cancel()
        del self._runs[run.id]

    def _forget_runs(self) -> list[SentBatch]:
        runs = list(self._runs.values())
        self._runs.clear()
        for run in runs:
            run.stop()
        return runs

    def _end_cancelled(self, run: SentBatch) -> None:
        if self._runs.pop(run.id, None) is None:
            return  # it was withdrawn meanwhile
        if time.monotonic_ns() >= run.deadline_ns:
            self._standing.limit.dropped()
            if self._answered_ns < run.sent_ns:  # no other batch was answered meanwhile either
                self._watch.failed("no answer within the deadline")
        self._listener.on_not_run(run.id, f"{self._id}: nobody waits any more")
