"""The simulator against queueing theory: waiting times in the systems that have formulas."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean, stdev

import pytest
from scipy.stats import t as student  # type: ignore[import-untyped]

from policies import make_policy
from replay.simulator import Arrival, Simulator
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec

MS = 1_000_000
MEAN_MS = 10.0
KIND = RequestClass("m")
FOREVER_NS = 10**15
SEEDS = range(1, 11)
REQUESTS, WARM_UP = 3_000, 500

Draw = Callable[[random.Random], float]


def exponential(chance: random.Random) -> float:
    return chance.expovariate(1 / MEAN_MS)


def constant(chance: random.Random) -> float:
    del chance
    return MEAN_MS


def waits_ms(servers: int, load: float, draw: Draw, seed: int) -> list[float]:
    """The time each request waits before it is served, first come, first served."""
    chance, service = random.Random(f"{seed} times"), random.Random(f"{seed} service")
    offer = Offer("m", "v", "runtime", {1: (round(MEAN_MS * MS),)})
    specs = [TargetSpec(f"cpu:{i}", (offer,), slots=1) for i in range(servers)]
    arrivals, at_ms = [], 0.0
    for _ in range(REQUESTS):
        at_ms += chance.expovariate(load * servers / MEAN_MS)
        arrivals.append(Arrival(round(at_ms * MS), KIND, FOREVER_NS))
    simulator = Simulator(
        make_policy("fcfs"), specs, lambda _run, _kind: max(1, round(draw(service) * MS))
    )
    endings = sorted(simulator.run(arrivals), key=lambda ending: ending.finish.request_id)
    return [ending.finish.queue_ns / MS for ending in endings[WARM_UP:]]


def assert_in_interval(servers: int, load: float, draw: Draw, theory_ms: float) -> None:
    means = [fmean(waits_ms(servers, load, draw, seed)) for seed in SEEDS]
    half = student.ppf(0.995, len(means) - 1) * stdev(means) / math.sqrt(len(means))
    assert fmean(means) == pytest.approx(theory_ms, abs=half)
    assert half < 0.35 * theory_ms, "the interval says little"


def erlang_c(servers: int, load: float) -> float:
    """The share of the requests that have to wait in M/M/c."""
    offered = servers * load
    waiting = offered**servers / math.factorial(servers) / (1 - load)
    return waiting / (waiting + sum(offered**k / math.factorial(k) for k in range(servers)))


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_one_server_with_exponential_service(load):
    """M/M/1: Wq = rho / (mu - lambda)."""
    assert_in_interval(1, load, exponential, MEAN_MS * load / (1 - load))


@pytest.mark.parametrize(("servers", "load"), [(2, 0.7), (4, 0.8)])
def test_several_servers_with_exponential_service(servers, load):
    """M/M/c: Wq = C(c, a) / (c mu - lambda), with Erlang's C."""
    theory_ms = erlang_c(servers, load) * MEAN_MS / (servers * (1 - load))
    assert_in_interval(servers, load, exponential, theory_ms)


@pytest.mark.parametrize("load", [0.5, 0.7])
def test_one_server_with_constant_service(load):
    """M/D/1: Wq = rho / (2 (mu - lambda)), by Pollaczek and Khinchin."""
    assert_in_interval(1, load, constant, MEAN_MS * load / (2 * (1 - load)))
