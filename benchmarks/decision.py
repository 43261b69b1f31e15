"""The cost of a decision with 1,000 queued requests.

    python -m benchmarks.decision [--policy NAME] [--boxes N] [--clouds N] [--json FILE]

There are four classes of requests with mixed budgets, and three targets of different speed. The
queue is kept at its length: for each request that a batch takes out, a new one is submitted. So
both kinds of decision (at an arrival, at the end of a batch) are measured with a full queue. It is
measured twice: with budgets that leave time to spare, and (`tight_`) with budgets close to the time
that the queue takes, where each admission has to be weighed.

With `--boxes` or `--clouds` there are other boxes or paid clouds as well, to which the default
sends what would be late at home.
"""

from __future__ import annotations

import argparse
import random
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import perf_counter_ns

from benchmarks.figures import write_figures
from policies import POLICIES, make_policy
from scheduler.core.commands import Dispatch
from scheduler.core.events import BatchDone, Event, Submitted, TargetUp
from scheduler.core.offers import Offer
from scheduler.core.requests import Request, RequestClass
from scheduler.core.scheduler import Scheduler
from scheduler.core.target_specs import TargetSpec

MS = 1_000_000
QUEUED = 1_000
KINDS = tuple(RequestClass(f"model{i}") for i in range(4))
SPEEDS = {"cpu:0": 1.0, "gpu:0": 0.4, "npu:0": 0.7}
SIZES = (1, 2, 4, 8, 16)
AMPLE_MS, TIGHT_MS = (400, 600, 900), (180, 200, 240)
BASE_MS, ITEM_MS = 2.0, 0.5
FAR_MS, FAR_WIDTH = 20.0, 4


def batch_ns(target_id: str, model: str, count: int) -> float:
    """The time of a batch of so many requests, without noise."""
    size = SIZES[bisect_left(SIZES, count)]
    slower = 1 + 0.3 * int(model[-1])
    if target_id not in SPEEDS:
        return FAR_MS * slower * MS
    return (BASE_MS + ITEM_MS * size) * slower * SPEEDS[target_id] * MS


def targets(rng: random.Random) -> Iterator[TargetSpec]:
    """The three targets; each runs every model."""
    for target_id in SPEEDS:
        yield TargetSpec(target_id, tuple(_offers(rng, target_id, SIZES)))


def far(rng: random.Random, boxes: int, clouds: int) -> Iterator[TargetSpec]:
    """Other boxes, and clouds; each takes a few single requests of every model at once."""
    for number in range(boxes + clouds):
        is_box = number < boxes
        name = f"box-{number}" if is_box else f"cloud-{number - boxes}"
        yield TargetSpec(
            name,
            tuple(_offers(rng, name, (1,))),
            slots=FAR_WIDTH,
            width=FAR_WIDTH,
            remote=True,
            transfer_ns=(MS // 2, 10.0),
            peer=is_box,
            cost_per_request=0.0 if is_box else 0.01,
        )


def _offers(rng: random.Random, target_id: str, sizes: Iterable[int]) -> Iterator[Offer]:
    for kind in KINDS:
        ladder = {
            size: tuple(
                int(batch_ns(target_id, kind.model, size) * rng.lognormvariate(0, 0.1))
                for _ in range(32)
            )
            for size in sizes
        }
        yield Offer(kind.model, "fp32", "emulated", ladder)


class Bench:
    """One scheduler in a steady state, with its decisions timed."""

    def __init__(self, policy: str, budgets_ms: tuple[int, ...], boxes: int, clouds: int) -> None:
        self.budgets_ms = budgets_ms
        self.rng = random.Random(5)
        self.scheduler = Scheduler(make_policy(policy))
        self.agenda: list[tuple[int, BatchDone]] = []
        self.free_ns = dict.fromkeys(SPEEDS, 0)
        self.next_id = 1
        self.now_ns = 0
        self.costs: dict[str, list[int]] = {"submitted": [], "batch_done": []}
        self.queued: list[int] = []
        for target in (*targets(self.rng), *far(self.rng, boxes, clouds)):
            self.scheduler.handle(TargetUp(target), 0)

    def timed(self, name: str, event: Event) -> None:
        started = perf_counter_ns()
        commands = self.scheduler.handle(event, self.now_ns)
        self.costs[name].append(perf_counter_ns() - started)
        for command in commands:
            if isinstance(command, Dispatch):
                noise = self.rng.lognormvariate(0, 0.1)
                size = len(command.request_ids)
                start = max(self.now_ns, self.free_ns.get(command.target_id, 0))
                done = start + int(batch_ns(command.target_id, command.model, size) * noise)
                if command.target_id in SPEEDS:
                    self.free_ns[command.target_id] = done
                self.agenda.append((done, BatchDone(command.run_id)))

    def submit(self) -> None:
        budget_ns = self.rng.choice(self.budgets_ms) * MS + self.rng.randrange(50 * MS)
        request = Request(self.next_id, self.rng.choice(KINDS), self.now_ns + budget_ns)
        self.next_id += 1
        self.timed("submitted", Submitted((request,)))

    def run(self, batches: int) -> None:
        for _ in range(2 * QUEUED):
            self.submit()
        for samples in self.costs.values():
            samples.clear()
        for _ in range(batches):
            self.agenda.sort(key=lambda item: item[0])
            self.now_ns, event = self.agenda.pop(0)
            self.timed("batch_done", event)
            self.queued.append(sum(map(len, self.scheduler.queues.values())))
            for _ in range(min(32, QUEUED - self.queued[-1])):
                self.submit()


def percentile(samples: list[int], share: float) -> float:
    """A percentile of nanoseconds, in microseconds."""
    return sorted(samples)[int(share * (len(samples) - 1))] / 1000


def measure(policy: str, boxes: int, clouds: int) -> dict[str, float]:
    """All figures of one policy."""
    figures: dict[str, float] = {}
    for prefix, budgets_ms in (("", AMPLE_MS), ("tight_", TIGHT_MS)):
        bench = Bench(policy, budgets_ms, boxes, clouds)
        bench.run(batches=1_000)
        costs = {**bench.costs, "decision": [c for found in bench.costs.values() for c in found]}
        for name, samples in sorted(costs.items(), reverse=True):
            figures[f"{prefix}{name}_p50_us"] = percentile(samples, 0.5)
            figures[f"{prefix}{name}_p99_us"] = percentile(samples, 0.99)
        figures[f"{prefix}queued"] = sum(bench.queued) / len(bench.queued)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", choices=sorted(POLICIES), action="append")
    parser.add_argument("--boxes", type=int, default=0, help="how many other boxes there are")
    parser.add_argument("--clouds", type=int, default=0, help="how many paid clouds there are")
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    results = {
        name: measure(name, args.boxes, args.clouds) for name in args.policy or sorted(POLICIES)
    }
    for name, figures in results.items():
        print(name, *(f"{key} {value:.1f}" for key, value in figures.items()), file=sys.stderr)
    write_figures(results, args.json)


if __name__ == "__main__":
    main()
