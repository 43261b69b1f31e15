"""The Ray actor that hosts a device; Ray places, supervises and restarts it."""

from __future__ import annotations

import faulthandler
import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import ray

from scheduler.core.offers import Offer
from scheduler.wire import Header
from workers.device_host import DeviceHost
from workers.device_watch import LOOK_EVERY_S
from workers.link import offer_header
from workers.link_server import LinkServer
from workers.model import Model
from workers.profiling import Effort
from workers.repository import RepositoryError
from workers.runtimes.base import DeviceError, DeviceSpec
from workers.runtimes.emulated import link_of
from workers.runtimes.emulated_link import EmulatedLink
from workers.starting_again import tried_again

LOOK_FOR_STUCK_S = 0.5
LOOKING_SHARE = 0.02
"""The most of a thread's time that goes into looking at the files of the repository."""

LAST_WORDS_S = 2.0


class WorkerProcess:
    """Hosts one device behind a link, with one thread that serves and one that prepares."""

    def __init__(
        self,
        spec: DeviceSpec,
        models: Path,
        state_dir: Path,
        link_path: Path,
        max_batch: int,
        effort: Effort,
    ) -> None:
        """Start serving at once; offer each model when it is ready.

        Args:
            spec: The device.
            models: The model repository.
            state_dir: Folder for profiles and compiled models.
            link_path: The unix socket to which the scheduler connects.
            max_batch: The device's largest batch size.
            effort: How much time to spend on a profile.

        Raises:
            DeviceError: The device's runtimes or cores are not available.
            RepositoryError: The repository's folder cannot be read.
        """
        with tried_again(f"the worker of {spec.id}", DeviceError, RepositoryError):
            self._host = DeviceHost(spec, models, state_dir, max_batch, effort)
        link = link_of(spec)
        own_path = link_path if link is None else link_path.with_suffix(".far")
        self._due: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._queued: set[Callable[[], None]] = set()
        self._queue(self._prepare)
        self._link = LinkServer(
            own_path,
            self._host,
            lambda *key: self._due.put(partial(self._measure_again, *key)),
            maps=link is None,
        )
        if link is not None:
            self._link.say("way", {"t": "way", "transfer_ns": link.transfer_ns})
            self._start("link", EmulatedLink(link, link_path, own_path).serve_forever)
        self._say_catalog()
        self._host.tell_offer = self._say_offer
        self._host.tell_end = self._say_end
        self._prepared = threading.Event()
        self._start("serve", self._link.serve_forever)
        self._start("prepare", self._prepare_when_due)
        self._start("watch", self._watch)
        self._start("repository", self._watch_repository)
        self._start("stuck", self._end_when_stuck)

    def describe(self) -> dict[str, Any]:
        """The process id, and which device this is and what can run on it."""
        return {"pid": os.getpid(), "device": self._host.describe()}

    def occupy(self, seconds: float) -> int:
        """Keep the device busy, so that other devices can measure how much that slows them down.

        Returns:
            How many batches it ran.
        """
        self._prepared.wait()
        return self._host.occupy(seconds)

    def typical_ns(self, seconds: float) -> dict[str, int]:
        """The current median time of a single item, in nanoseconds, by variant served."""
        self._prepared.wait()
        return self._host.typical_ns(seconds)

    def learn_contention(self, slowdown: dict[str, float]) -> None:
        """Record by what factor each other device, by id, slows this one down while busy."""
        self._host.contention.update(slowdown)
        self._say_telemetry()

    def _prepare_when_due(self) -> None:
        """Prepares variants whenever that is due, and measures single ones again on request."""
        while True:
            work = self._due.get()
            self._queued.discard(work)
            work()

    def _queue(self, work: Callable[[], None]) -> None:
        """Queues work, unless it is queued and has not begun."""
        if work not in self._queued:
            self._queued.add(work)
            self._due.put(work)

    def _prepare(self) -> None:
        self._offer_all(self._host.prepare(self._say_progress))
        self._prepared.set()

    def _prepare_changes(self) -> None:
        for ready in self._host.prepare_changes(self._say_progress):
            with self._link.between_runs():  # no answer of the old files may follow the new catalog
                offers, gone = self._host.adopt(ready)
                self._say_catalog()  # first: whoever sees the new offers gets no cached old answer
                for offer in offers:
                    self._say_offer(offer)
                if gone:
                    told = {"t": "withdrawn", "variants": gone}
                    self._link.unsay([_offer_key(*key) for key in gone], told)
                self._say_catalog()  # that what is new in it is served by now
        self._say_ready()

    def _measure_again(self, model: str, variant: str) -> None:
        offer = self._host.measure_again(model, variant)
        if offer is not None:
            self._say_offer(offer)

    def _offer_all(self, offers: Iterable[Offer]) -> None:
        for offer in offers:
            self._say_offer(offer)
            self._say_catalog()
        self._say_ready()

    def _say_ready(self) -> None:
        self._say_catalog()
        self._link.say("progress", {"t": "progress", "done": 1, "total": 1, "text": "ready"})

    def _watch(self) -> None:
        """Sends telemetry, and queues a preparation if the device has changed."""
        told = len(self._host.problems)
        while True:
            time.sleep(LOOK_EVERY_S)
            if self._host.has_changed():
                self._queue(self._prepare)
            if self._prepared.is_set():
                self._host.give_back()
            if len(self._host.problems) != told:  # such as a model that could not be reloaded
                told = len(self._host.problems)
                with self._link.between_runs():  # nor amid the replacement of a model
                    self._say_catalog()
            self._say_telemetry()

    def _watch_repository(self) -> None:
        """Queues a preparation if the repository has changed; a share may hang for long."""
        took_s = 0.0
        while True:
            time.sleep(max(LOOK_EVERY_S, took_s / LOOKING_SHARE))
            began_s = time.monotonic()
            if self._host.has_changes():
                self._queue(self._prepare_changes)
            took_s = time.monotonic() - began_s

    def _end_when_stuck(self) -> None:
        """Ends the process once a batch is stuck, because a hung library blocks all others."""
        before, stuck = None, self._host.stuck()
        while before is None or stuck is None:  # twice in a row: a paused process looks stuck once
            time.sleep(LOOK_FOR_STUCK_S)
            before, stuck = stuck, self._host.stuck()
        faulthandler.dump_traceback()  # the log then shows where it hangs
        self._say_end(stuck)
        os._exit(1)

    def _say_end(self, reason: str) -> None:
        """Sends the last message; the process ends even if that hangs."""
        faulthandler.dump_traceback_later(LAST_WORDS_S, exit=True)
        self._link.say("ending", {"t": "ending", "reason": reason})

    def _say_offer(self, offer: Offer) -> None:
        self._link.say(_offer_key(offer.model, offer.variant), offer_header(offer))

    def _say_telemetry(self) -> None:
        contention = {other: round(times, 3) for other, times in self._host.contention.items()}
        told = {**self._host.telemetry(), "contention": contention}
        self._link.say("telemetry", {"t": "telemetry", "reading": told})

    def _say_progress(self, done: int, total: int, text: str) -> None:
        # Only `ready` reports the last step, so that a full bar never appears before the end.
        step = {"t": "progress", "done": min(done, total - 1), "total": total, "text": text}
        self._link.say("progress", step)

    def _say_catalog(self) -> None:
        host = self._host
        problems = [(p.model, p.reason) for p in host.repository.problems]
        problems += [problem.told() for problem in host.problems]
        cards = [_card(model) for model in host.repository.models.values()]
        self._link.say("catalog", {"t": "catalog", "models": cards, "problems": problems})

    def _start(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException:  # half a worker is worse than none: Ray restarts it
                try:
                    traceback.print_exc()
                finally:  # also where there is no room for that
                    os._exit(1)

        threading.Thread(target=run, name=f"laxity-{name}", daemon=True).start()


def _offer_key(model: str, variant: str) -> str:
    return f"offer {model}/{variant}"


def _card(model: Model) -> Header:
    return {
        "name": model.name,
        "description": model.description,
        "signature": asdict(model.signature),
        "variants": [variant.name for variant in model.variants],
        "max_batch": model.max_batch,
        "digest": model.digest,
        "cache": asdict(model.cache) if model.cache is not None else None,
        "shrink": [asdict(forms) for forms in model.shrink],
        "pad": [asdict(padding) for padding in model.pad],
    }


DeviceWorker = cast(Any, ray.remote)(num_cpus=0, max_restarts=-1, max_task_retries=-1)(
    WorkerProcess
)
