"""When requests arrive: arrival processes as endless streams of times, in integer nanoseconds.

A process is open-loop: arrivals do not depend on what became of earlier requests (`clients.py` has
the closed loop). The same rate and seed give the same times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

NS = 1e9
MOST_JITTER = 0.5
"""As a share of the period; with more jitter, a camera's frames would overtake each other."""

MOST_CAMERAS = 100_000
"""Each has random numbers of its own, which take 3 kB."""

LEAST_STAY_S = 0.001
"""Of a burst or between two; shorter ones would take more time than the requests in them."""

LEAST_CV = 0.001
"""Of the gaps; with less, requests come as evenly as from `constant`, and their shape overflows."""


class Process(Protocol):
    """An arrival process, for any mean rate.

    Attributes:
        alike: Whether all requests of one sender are of one kind, as a camera's are.
    """

    alike: ClassVar[bool]

    def streams(self, rate_per_s: float, seed: str) -> list[Iterator[int]]:
        """Rising times in ns, one stream per sender; together they have the given rate."""


# -- the streams


def constant_ns(rate_per_s: float) -> Iterator[int]:
    """Evenly spaced times without drift; the first comes after one gap."""
    over, under = rate_per_s.as_integer_ratio()
    at = 0
    while True:
        at += 1_000_000_000 * under
        yield at // over


def poisson_ns(rate_per_s: float, chance: random.Random) -> Iterator[int]:
    """Times with exponential gaps."""
    per_ns = rate_per_s / NS
    at_ns = 0
    while True:
        at_ns += round(chance.expovariate(per_ns))
        yield at_ns


def gamma_ns(rate_per_s: float, cv: float, chance: random.Random) -> Iterator[int]:
    """Times with gamma-distributed gaps of a given coefficient of variation; 1 is Poisson.

    The first gap begins at an arrival, so a short workload has about (cv² - 1) / 2 more requests
    than its rate implies.
    """
    shape = 1 / (cv * cv)
    scale_ns = NS / (rate_per_s * shape)
    at_ns = 0
    while True:
        at_ns += round(chance.gammavariate(shape, scale_ns))
        yield at_ns


def mmpp_ns(
    rates_per_s: Sequence[float], stays_s: Sequence[float], chance: random.Random
) -> Iterator[int]:
    """A Markov-modulated Poisson process: a rate per state, an exponential stay in each.

    The next state is any other one, with equal probability. The process begins in its steady state.
    """
    states = range(len(rates_per_s))
    # Uniform jumps visit all states equally often, so time divides as the stays do.
    state = chance.choices(states, stays_s)[0]
    enter_ns = 0.0
    while True:
        leave_ns = enter_ns + chance.expovariate(1 / (stays_s[state] * NS))
        at_ns = enter_ns
        # A Poisson process has no memory, so an arrival due after the change can be dropped.
        while rates_per_s[state] > 0:
            at_ns += chance.expovariate(rates_per_s[state] / NS)
            if at_ns >= leave_ns:
                break
            yield round(at_ns)
        enter_ns = leave_ns
        state = chance.choice([other for other in states if other != state])


def diurnal_ns(
    rate_per_s: float, amplitude: float, period_s: float, phase: float, chance: random.Random
) -> Iterator[int]:
    """Poisson arrivals whose rate follows a sine, by thinning (Lewis and Shedler 1979).

    The rate is `rate_per_s * (1 + amplitude * sin(2 pi (t / period_s + phase)))`.
    """
    turn = 2 * math.pi / (period_s * NS)
    shift = 2 * math.pi * phase
    for at_ns in poisson_ns(rate_per_s * (1 + amplitude), chance):
        share = (1 + amplitude * math.sin(turn * at_ns + shift)) / (1 + amplitude)
        if chance.random() < share:
            yield at_ns


def camera_ns(
    fps: float, jitter: float, chance: random.Random, spread: float = 1.0
) -> Iterator[int]:
    """Frames of one camera with a random phase, each early or late by a share of its period.

    The phase lies within the first `spread` of the period, which is a share too.
    """
    period_ns = NS / fps
    offset = spread * chance.random()
    frame = 0
    while True:
        shift = chance.uniform(-jitter, jitter)
        yield max(0, round((frame + offset + shift) * period_ns))
        frame += 1


# -- the processes that a description can name


@dataclass(frozen=True, slots=True)
class Constant:
    """Evenly spaced requests."""

    alike: ClassVar[bool] = False

    def streams(self, rate_per_s: float, seed: str) -> list[Iterator[int]]:
        """One stream; the seed is not used."""
        del seed
        return [constant_ns(rate_per_s)]


@dataclass(frozen=True, slots=True)
class Poisson:
    """Many independent senders."""

    alike: ClassVar[bool] = False

    def streams(self, rate_per_s: float, seed: str) -> list[Iterator[int]]:
        """One stream."""
        return [poisson_ns(rate_per_s, random.Random(seed))]


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gaps more or less regular than those of a Poisson process.

    Attributes:
        cv: Standard deviation of the gaps over their mean.
    """

    alike: ClassVar[bool] = False
    cv: float

    def __post_init__(self) -> None:
        _require(LEAST_CV <= self.cv <= 100, "cv", f"from {LEAST_CV} to 100", self.cv)

    def streams(self, rate_per_s: float, seed: str) -> list[Iterator[int]]:
        """One stream."""
        return [gamma_ns(rate_per_s, self.cv, random.Random(seed))]


@dataclass(frozen=True, slots=True)
class Bursts:
    """A two-state MMPP: quiet, and a burst now and then.

    Attributes:
        factor: The rate in a burst over the rate in the quiet.
        burst_s: The mean length of a burst.
        quiet_s: The mean length of the quiet between bursts.
    """

    alike: ClassVar[bool] = False
    factor: float
    burst_s: float
    quiet_s: float

    def __post_init__(self) -> None:
        _require(1 <= self.factor < math.inf, "factor", "1 or more", self.factor)
        for name, stay_s in (("burst_s", self.burst_s), ("quiet_s", self.quiet_s)):
            _require(LEAST_STAY_S <= stay_s < math.inf, name, f"{LEAST_STAY_S} or more", stay_s)

    def streams(self, rate_per_s: float, seed: str) -> list[Iterator[int]]:
        """One stream; the rate is the mean over quiet and bursts."""
        together = self.quiet_s + self.factor * self.burst_s
        quiet = rate_per_s * (self.quiet_s + self.burst_s) / together
        rates, stays = (quiet, quiet * self.factor), (self.quiet_s, self.burst_s)
        return [mmpp_ns(rates, stays, random.Random(seed))]


@dataclass(frozen=True, slots=True)
class Diurnal:
    """Busy and slack times in turn.

    Attributes:
        amplitude: The share of the mean by which the rate goes up and down, from 0 to 1.
        period_s: Time from one peak to the next.
        phase: Where in the period it begins: 0 at the mean and rising, 0.25 at the peak.
    """

    alike: ClassVar[bool] = False
    amplitude: float
    period_s: float
    phase: float = 0.0

    def __post_init__(self) -> None:
        _require(0 <= self.amplitude <= 1, "amplitude", "from 0 to 1", self.amplitude)
        _require(0 < self.period_s < math.inf, "period_s", "above 0", self.period_s)
        _require(0 <= self.phase <= 1, "phase", "from 0 to 1", self.phase)

    def streams(self, rate_per_s: float, seed: str) -> list[Iterator[int]]:
        """One stream; the rate is the mean over a period."""
        chance = random.Random(seed)
        return [diurnal_ns(rate_per_s, self.amplitude, self.period_s, self.phase, chance)]


@dataclass(frozen=True, slots=True)
class Cameras:
    """Cameras that each send one frame per period, with separate phases.

    Attributes:
        cameras: Number of cameras.
        jitter: The share of its period by which a frame may be early or late, from 0 to below 0.5.
        spread: The share of the period over which the phases lie; 0 triggers all cameras at once.
    """

    alike: ClassVar[bool] = True
    cameras: int
    jitter: float = 0.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        most = f"from 1 to {MOST_CAMERAS:,}"
        _require(1 <= self.cameras <= MOST_CAMERAS, "cameras", most, self.cameras)
        _require(0 <= self.jitter < MOST_JITTER, "jitter", "from 0 to below 0.5", self.jitter)
        _require(0 <= self.spread <= 1, "spread", "from 0 to 1", self.spread)

    def streams(self, rate_per_s: float, seed: str) -> list[Iterator[int]]:
        """One stream per camera. A camera has the same phase at any rate."""
        fps = rate_per_s / self.cameras
        return [
            camera_ns(fps, self.jitter, random.Random(f"{seed} {number}"), self.spread)
            for number in range(self.cameras)
        ]


PROCESSES: dict[str, type[Process]] = {
    "constant": Constant,
    "poisson": Poisson,
    "gamma": Gamma,
    "bursts": Bursts,
    "diurnal": Diurnal,
    "cameras": Cameras,
}
"""The processes by the name that a description gives; the fields of each are its keys."""


def _require(holds: bool, name: str, wanted: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{name} should be {wanted}; got {value!r}")
