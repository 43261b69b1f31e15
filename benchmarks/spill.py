"""The value of a cloud behind an emulated link to a box that is too small for its load.

    python -m benchmarks.spill --json FILE [--cloud laxity|serve|triton|mlserver] [--pings FOLDER]

The box is a real agent with an emulated device that is far too slow for its requests. The cloud is
a real server of the chosen kind, whose model only sleeps as long as an emulated device takes.
Between them is a relay with the delays of recorded 5G pings. The same arrivals are played to the
box alone, with the cloud near (edge) and far (cloud), with a cloud that is cut off for ten seconds,
and with a budget that does not last. The last run has fewer and larger requests, and a link that
carries two thirds of them, so that box and cloud together are just enough.

The bound is arithmetic: the capacities of both devices together exceed the load, and the round trip
is below the deadline. So every request could be in time, except that during an outage only as many
can be as the box itself can do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import write_figures
from benchmarks.noop import make_models
from benchmarks.spawned_agent import preferred, spawned_agent
from benchmarks.spill_clouds import CLOUDS, emulated
from replay.links import LinkEmulator, OneWay
from scheduler import Client, LaxityError

DEADLINE_MS = 250.0
RECORDED = Path(__file__).parents[2] / "shared" / "data" / "network" / "det6g"
RATE_PER_S = 80.0
FLOATS = 1024
NARROW = {"rate_per_s": 50.0, "floats": 37_500, "mbps": 40.0}
"""Requests of 150 KB; the link carries 33 of them a second."""
COST, BUDGET = 0.001, 0.5
SLOW = {"base_ms": 20.0, "per_item_ms": 30.0, "jitter": 0.02}
"""The box's device: at most 30 requests a second, in the largest batches that are in time."""
NICENESS = int(os.environ.get("NICENESS", "0"))
"""Below 0 it gives the agents, the relay and the callers priority over other work on the machine,
which needs a superuser."""
SYNTHETIC_MS = (15.0, 4.0)
"""Round trip and jitter if there is no recording."""


@dataclass(frozen=True)
class Ending:
    """How one request ended.

    Attributes:
        at_s: When it was due, since the start.
        held_up_s: How much later it was sent, as a busy machine delays the callers too.
        in_time: Whether the caller had its result within the deadline.
        target: The target that ran it; empty if it has no result.
        outcome: The outcome that the box reported.
    """

    at_s: float
    held_up_s: float
    in_time: bool
    target: str
    outcome: str


class Relay:
    """A link emulator on an event loop in its own thread."""

    def __init__(self, url: str, ping: Path | None, mbps: float | None = None) -> None:
        rtt_ms, jitter_ms = (0.0, 0.0) if ping else SYNTHETIC_MS
        self._way = OneWay.half(rtt_ms, jitter_ms, *([ping] if ping else []), mbps=mbps)
        self._scheme, _, self._to = url.partition("://")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Relay:
        self._thread.start()
        self._link = self._run(self._open())
        return self

    async def _open(self) -> LinkEmulator:
        link = LinkEmulator("127.0.0.1:0", self._to, up=self._way, down=self._way)
        return await link.__aenter__()

    def __exit__(self, *_: object) -> None:
        self._run(self._link.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def url(self) -> str:
        """The server's URL at this end of the link."""
        return f"{self._scheme}://{self._link.address.partition('://')[2]}"

    def cut(self) -> None:
        """Drop everything silently, like a pulled cable."""
        self._loop.call_soon_threadsafe(self._link.outage)

    def restore(self) -> None:
        """End the outage."""
        self._loop.call_soon_threadsafe(self._link.restore)

    def cut_at(self, from_s: float, for_s: float) -> None:
        """Schedule an outage that starts after `from_s` and lasts for `for_s`."""
        loop = self._loop
        loop.call_soon_threadsafe(loop.call_later, from_s, self._link.outage)
        loop.call_soon_threadsafe(loop.call_later, from_s + for_s, self._link.restore)


def arrivals(seconds: float, rate_per_s: float = RATE_PER_S, seed: int = 1) -> list[float]:
    """Poisson arrivals, in seconds since the start."""
    gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, int(2 * rate_per_s * seconds))
    times = np.cumsum(gaps)
    return [float(at_s) for at_s in times[times < seconds]]


def play(client: Client, at_s: Sequence[float], start_s: float, floats: int) -> list[Ending]:
    """Send a request at each time, without waiting for earlier ones (open loop)."""
    x = {"x": np.zeros(floats, np.float32)}
    sent: list[tuple[float, Future[Any], list[float]]] = []
    for due_s in at_s:
        time.sleep(max(0.0, start_s + due_s - time.monotonic()))
        done: list[float] = []
        asked_s = time.monotonic()
        future = client.submit("noop", x, deadline_ms=DEADLINE_MS)
        future.add_done_callback(partial(_note_time, done))
        sent.append((asked_s, future, done))
    endings = []
    for due_s, (asked_s, future, done) in zip(at_s, sent, strict=True):
        held_up_s = asked_s - start_s - due_s
        try:
            result = future.result()
        except LaxityError as error:
            endings.append(Ending(due_s, held_up_s, False, "", error.code))
            continue
        in_time = done[0] - asked_s <= DEADLINE_MS / 1e3
        endings.append(Ending(due_s, held_up_s, in_time, result.target, result.outcome))
    return endings


def run(
    folder: Path,
    models: Path,
    at_s: Sequence[float],
    relay: Relay | None,
    outage: tuple[float, float] | None = None,
    floats: int = FLOATS,
    **cloud: Any,
) -> tuple[list[Ending], dict[str, Any]]:
    """Play arrivals to a fresh box; return the endings, and the box's status of the cloud."""
    folder.mkdir()
    clouds = [] if relay is None else [{"name": "far", "url": relay.url, **cloud}]
    with (
        spawned_agent(folder, models, NICENESS, devices=emulated(SLOW), cloud=clouds) as url,
        Client(url) as client,
    ):
        start_s = time.monotonic() + 0.5
        if relay is not None and outage is not None:
            relay.cut_at(start_s - time.monotonic() + outage[0], outage[1])
        endings = play(client, at_s, start_s, floats)
        targets = {target["id"]: target for target in client.status()["targets"]}
    return endings, targets.get("far", {})


def _note_time(times_s: list[float], _: Future[Any]) -> None:
    times_s.append(time.monotonic())


def share(endings: Sequence[Ending]) -> float:
    """The share of requests in time."""
    return sum(ending.in_time for ending in endings) / len(endings)


def within(endings: Sequence[Ending], window: tuple[float, float]) -> list[Ending]:
    """The requests due in a window, given as its start and length in seconds."""
    return [e for e in endings if window[0] <= e.at_s < window[0] + window[1]]


def figures_of(endings: Sequence[Ending]) -> dict[str, Any]:
    """The figures of a run."""
    return {
        "requests": len(endings),
        "in_time": round(share(endings), 4),
        "held_up_ms": round(1e3 * max(e.held_up_s for e in endings), 1),
        "where": dict(Counter(e.target or e.outcome for e in endings)),
    }


def measure(kind: str, folder: Path, pings: Path, seconds: float) -> dict[str, Any]:
    """Make every run with one kind of cloud, one after the other."""
    models = folder / "models"
    make_models(models)
    shutil.rmtree(models / "echo")
    at_s = arrivals(seconds)
    outage = (seconds / 3, 10.0)
    (folder / "far").mkdir()
    figures: dict[str, Any] = {
        "cloud is": kind,
        "deadline_ms": DEADLINE_MS,
        "rate_per_s": RATE_PER_S,
        "bound": 1.0,
        "pings": str(pings) if pings.is_dir() else f"synthetic, {SYNTHETIC_MS} ms",
    }
    with CLOUDS[kind](folder / "far", models, NICENESS) as far_url:
        alone, _ = run(folder / "alone", models, at_s, None)
        figures["alone"] = figures_of(alone)
        for name, more in (
            ("edge", {"cost_per_request": COST}),
            ("cloud", {"cost_per_request": COST}),
            ("outage", {"cost_per_request": COST}),
            ("budget", {"cost_per_request": COST, "budget_per_hour": BUDGET}),
        ):
            ping = pings / f"ping-{'cloud' if name == 'cloud' else 'MEC'}-cmWave.txt"
            with Relay(far_url, ping if ping.exists() else None) as relay:
                cut = outage if name == "outage" else None
                endings, far = run(folder / name, models, at_s, relay, cut, FLOATS, **more)
            figures[name] = {
                **figures_of(endings),
                "spent": far["spending"]["spent"],
                "breaker": far["breaker"],
                "way": far["way"],
                "limit": far["limit"],
            }
            if cut is not None:
                during = within(endings, outage)
                figures[name]["during_outage"] = {
                    "requests": len(during),
                    "in_time": sum(e.in_time for e in during),
                    "in_time_alone": sum(e.in_time for e in within(alone, outage)),
                }
        at_s = arrivals(seconds, NARROW["rate_per_s"])
        with Relay(far_url, None, NARROW["mbps"]) as relay:
            floats = int(NARROW["floats"])
            endings, far = run(folder / "narrow", models, at_s, relay, floats=floats)
        figures["narrow"] = {**figures_of(endings), "way": far["way"], "limit": far["limit"]}
    figures["budget"]["limit_of_budget"] = BUDGET
    return figures


def main() -> int:
    """Measure, write, and check that the promises hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cloud", choices=CLOUDS, default="laxity")
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--pings", type=Path, default=RECORDED, metavar="FOLDER")
    given = parser.parse_args()
    with preferred(NICENESS), tempfile.TemporaryDirectory() as folder:
        figures = measure(given.cloud, Path(folder), given.pings, given.seconds)
    during = figures["outage"]["during_outage"]
    figures["holds"] = {
        "within 3 points of the bound": all(
            figures[name]["in_time"] >= figures["bound"] - 0.03 for name in ("edge", "cloud")
        ),
        "an outage costs nothing the box could do": during["in_time"] >= during["in_time_alone"],
        "the budget holds": figures["budget"]["spent"] <= BUDGET,
    }
    write_figures(figures, given.json)
    return 0 if all(figures["holds"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
