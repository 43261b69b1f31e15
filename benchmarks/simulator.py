"""The speed of the simulator, and the cost of a decision in it.

    python -m benchmarks.simulator [--policy NAME] [--json FILE] [--sources] [--long N]

It is measured twice, in separate processes: from the plain sources, and as installed by
`LAXITY_COMPILED=1 pip install .`, which takes a minute and a C compiler. The figures are those of
the compiled build, with those of the sources under `sources`; with `--sources`, or without a
compiler, only those of the sources. `compiled` says which build it was.

The workload has four classes of requests on three targets of different speed, at 1.5 times their
capacity, with deadlines that keep about 1,000 requests queued. `core_per_s` is the same with a
trivial policy: the loop and the core alone. `loop_per_s` is with a policy that places the first
request in line alone, on a queue that stays short: an arrival, a batch and its end for every
request. All are measured in the process's CPU time, which other work on the machine disturbs least,
and with a workload generated beforehand. `--long` plays a stream of that many requests and prints
the memory it took.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter_ns, process_time
from typing import Any

from benchmarks.compiled import ROOT, can_compile, install
from benchmarks.decision import KINDS, MS, SIZES, SPEEDS, batch_ns, percentile, targets
from benchmarks.figures import write_figures
from policies import POLICIES, make_policy
from replay.simulator import Arrival, Simulator
from scheduler.core.commands import Dispatch
from scheduler.core.limits import Limits
from scheduler.core.policy import Decision, Place, Policy, View
from scheduler.core.queues import ClassQueue
from scheduler.core.requests import RequestClass

LOAD = 1.5
BUDGETS_MS = (150, 225, 300)
WARM_UP = 4_000
AHEAD_MS = 60


class First:
    """Places the head of the first queue, alone."""

    def decide(self, view: View) -> Iterator[Decision]:
        for target in view.open_targets():
            for queue in view.queues.values():
                head = queue.head()
                offer = target.usable(head.kind)[0]
                yield Place(target.spec.id, offer, (head,), "first")
                break


class Urgent:
    """Places the largest batch of the most urgent queue."""

    def decide(self, view: View) -> Iterator[Decision]:
        for target in view.open_targets():
            queue = min(view.queues.values(), key=ClassQueue.soonest_ns)
            batch = queue.first(SIZES[-1], view.now_ns + AHEAD_MS * MS)
            if not batch:
                break
            size = max(size for size in SIZES if size <= len(batch))
            offer = target.usable(queue.kind)[0]
            yield Place(target.spec.id, offer, tuple(batch[:size]), "urgent")
            if not view.queues:
                break


class Timed:
    """A policy whose decisions are timed; samples the queue length too."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.costs_ns: list[int] = []
        self.queued: list[int] = []

    def decide(self, view: View) -> Iterable[Decision]:
        if len(self.costs_ns) % 100 == 0:
            self.queued.append(sum(len(queue) for queue in view.queues.values()))
        # The core carries out each decision before it asks for the next; its time doesn't count.
        decisions = iter(self.policy.decide(view))
        spent = 0
        while True:
            started = perf_counter_ns()
            decision = next(decisions, None)
            spent += perf_counter_ns() - started
            if decision is None:
                break
            yield decision
        self.costs_ns.append(spent)


def arrivals(count: int, load: float, batch: int, seed: int = 3) -> Iterator[Arrival]:
    """Poisson arrivals at a load relative to the targets' capacity with batches of one size."""
    rng = random.Random(seed)
    mean_ns = sum(batch_ns("cpu:0", kind.model, batch) / batch for kind in KINDS) / len(KINDS)
    rate = load * sum(1 / speed for speed in SPEEDS.values()) / mean_ns
    at_ns = 0.0
    for _ in range(count):
        at_ns += rng.expovariate(rate)
        yield Arrival(int(at_ns), rng.choice(KINDS), rng.choice(BUDGETS_MS) * MS)


def simulator(policy: Policy, seed: int = 5) -> Simulator:
    """Make a simulator of the three targets."""
    rng = random.Random(seed)

    def service_ns(run: Dispatch, _kind: RequestClass) -> int:
        noise = 0.9 + 0.2 * rng.random()
        return int(batch_ns(run.target_id, run.model, len(run.request_ids)) * noise)

    return Simulator(policy, targets(rng), service_ns, Limits(story_entries=1_000))


def requests_per_s(policy: Policy, workload: Iterable[Arrival]) -> float:
    """The number of requests played per second of CPU time."""
    started = process_time()
    ended = sum(1 for _ in simulator(policy).run(workload))
    return ended / (process_time() - started)


def measure(name: str, count: int) -> dict[str, Any]:
    """Measure all figures of one policy, with the laxity imported here."""
    crowd, calm = list(arrivals(count, LOAD, 16)), list(arrivals(count, 0.7, 1))
    per_s = max(requests_per_s(make_policy(name), crowd) for _ in range(2))
    timed = Timed(make_policy(name))
    requests_per_s(timed, crowd)
    costs_ns = timed.costs_ns[min(WARM_UP, len(timed.costs_ns) // 4) :]
    return {
        "requests_per_s": per_s,
        "decision_p50_us": percentile(costs_ns, 0.5),
        "decision_p99_us": percentile(costs_ns, 0.99),
        "queued": sum(timed.queued) / len(timed.queued),
        "core_per_s": max(requests_per_s(Urgent(), crowd) for _ in range(2)),
        "loop_per_s": max(requests_per_s(First(), calm) for _ in range(2)),
        "compiled": not str(sys.modules[Simulator.__module__].__file__).endswith(".py"),
    }


def compile_into(folder: Path) -> bool:
    """Install a compiled laxity and these benchmarks in a folder; False without a compiler."""
    if not can_compile():
        print("no C compiler, or no headers of Python: from the sources alone", file=sys.stderr)
        return False
    print("compiling, which takes a minute ...", file=sys.stderr)
    done = install(folder)
    if done.returncode:
        sys.exit(done.stderr)
    folder.joinpath("benchmarks").symlink_to(ROOT / "benchmarks")
    return True


def measured_in(folder: Path, name: str, count: int) -> dict[str, Any]:
    """The figures of the laxity in a folder."""
    command = [sys.executable, "-m", "benchmarks.simulator", "--sources", "--policy", name]
    command += ["--requests", str(count)]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def compare(name: str, count: int) -> dict[str, Any]:
    """The figures of the compiled laxity, with those of its sources."""
    with tempfile.TemporaryDirectory(prefix="laxity-compiled-") as folder:
        is_compiled = compile_into(Path(folder))
        sources = measured_in(ROOT, name, count)
        if not is_compiled:
            return sources
        return measured_in(Path(folder), name, count) | {"sources": sources}


def play_long(name: str, count: int) -> None:
    """Print the memory used at each tenth of a long stream."""
    for number, _ in enumerate(simulator(make_policy(name)).run(arrivals(count, 0.9, 8)), 1):
        if number % (count // 10) == 0:
            memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{number:>12,} requests: {memory_mb:.0f} MB", file=sys.stderr)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", choices=sorted(POLICIES), default="goodput")
    parser.add_argument("--requests", type=int, default=30_000)
    parser.add_argument("--long", type=int, metavar="N", help="memory over a stream of N requests")
    parser.add_argument("--sources", action="store_true", help="measure what is imported here")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    if args.long:
        play_long(args.policy, args.long)
        return
    figures = (measure if args.sources else compare)(args.policy, args.requests)
    if args.sources:
        shown = [f"{key} {value:,.1f}" for key, value in figures.items() if key != "compiled"]
        build = "compiled" if figures["compiled"] else "sources"
        print(build, args.policy, *shown, file=sys.stderr)
    write_figures(figures, args.json)


if __name__ == "__main__":
    main()
