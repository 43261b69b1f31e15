"""A fleet: what a scheduler is told about its targets, and what is true of them.

`replay.fleet.sources.load_fleet` makes one from a file, a running box, its journal or a table of
profiles.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, median_high

from replay.bound.model import FAR_NS, Conditions, ServiceTimes
from replay.fleet.world import (
    FIRST_SEED,
    Course,
    FleetWorld,
    Incident,
    Link,
    Tempo,
    course_of,
    spans_up,
    without_stalls,
)
from replay.simulator import ServiceTime
from scheduler.core.commands import Dispatch
from scheduler.core.events import Event, TargetDown, TargetUp
from scheduler.core.names import did_you_mean
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.sizes import factor_at, step_of
from scheduler.core.target_specs import TargetSpec

SAMPLES = 32
"""The number of evenly spaced quantiles that represent a measured latency."""

NOISE_STEPS = 16
"""The number of quantiles for noise that the policy can't see."""

_Rung = tuple[str, str, str, int]
"""A target, a model, its variant, and a batch size."""

_P90 = NormalDist().inv_cdf(0.9)


class FleetError(ValueError):
    """A fleet can't be used; the message says what is wrong where, and what would be accepted."""


# -- profiles


def lognormal_samples(p50_ns: float, sigma: float, count: int = SAMPLES) -> tuple[int, ...]:
    """Evenly spaced quantiles of a lognormal latency."""
    if not sigma:
        return (max(1, round(p50_ns)),)
    normal = NormalDist(math.log(p50_ns), sigma)
    return tuple(max(1, round(math.exp(normal.inv_cdf((i + 0.5) / count)))) for i in range(count))


def quantile_samples(p50_ns: float, upper_ns: float, z: float = _P90) -> tuple[int, ...]:
    """As `lognormal_samples`, from the median and another quantile, by default the 90th."""
    return lognormal_samples(p50_ns, max(0.0, math.log(upper_ns / p50_ns)) / z)


# -- the fleet


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of a target's service times, and hidden from the policy.

    Attributes:
        sigma: Lognormal noise on top of the profile's own spread.
        bias: The factor between the profiled times and the true ones.
        misprediction: The largest share by which the profile is wrong; drawn per variant.
        drift: Pairs of a time and the factor on all times from then on, in order.
        times: By model, variant and batch size, samples of what batches really take, one of which
            is drawn for each batch. The profile is used where there is no entry.
        tempo: The pace of the device over time, where it is known; batch times are then not drawn.
        submit_ns: How much longer a running batch takes each time that requests arrive at the box
            meanwhile, one or several at once, where the device shares its processor with the
            scheduler.
        handover_ns: How long the idle device takes to begin a batch that arrives.
        sizes: By model and variant, for inputs of any size: for each size step the factor on the
            time of items of the profiled size, as `scheduler.core.sizes.factor_at` expects it.
    """

    sigma: float = 0.0
    bias: float = 1.0
    misprediction: float = 0.0
    drift: tuple[tuple[int, float], ...] = ()
    times: Mapping[tuple[str, str, int], Sequence[int]] = field(default_factory=dict, hash=False)
    tempo: Tempo | None = None
    submit_ns: int = 0
    handover_ns: int = 0
    sizes: Mapping[tuple[str, str], Sequence[tuple[int, float]]] = field(
        default_factory=dict, hash=False
    )


@dataclass(frozen=True, slots=True)
class Device:
    """A target.

    Attributes:
        spec: What the scheduler is told.
        link: The link to it; None if it is on this box.
        truth: What the scheduler is not told.
    """

    spec: TargetSpec
    link: Link | None = None
    truth: Truth = Truth()


@dataclass(frozen=True, slots=True)
class Fleet:
    """Targets, the truth about them, and what happens to them.

    Attributes:
        name: The fleet's name.
        devices: The targets, at least one.
        script: What happens, in order of time.
        notes: What a reader has to know about it.
    """

    name: str
    devices: tuple[Device, ...]
    script: tuple[Incident, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuses two targets of one name, and a script for a target that doesn't exist."""
        ids = [device.spec.id for device in self.devices]
        for target_id in ids:
            if ids.count(target_id) > 1:
                raise FleetError(f"fleet {self.name!r}: two targets are called {target_id!r}")
        for incident in self.script:
            if incident.target_id not in ids:
                raise FleetError(
                    f"fleet {self.name!r}: the script names target {incident.target_id!r}; "
                    f"{did_you_mean(incident.target_id, ids)}"
                )

    def missed(self, last_ns: int) -> list[str]:
        """A note if scripted events or drifts come only after the last request has ended.

        It is the same for each seed that misses some, however many these are, so that a report has
        one line for all of them.
        """
        moments = [incident.at_ns for incident in self.script]
        moments += [at_ns for device in self.devices for at_ns, _ in device.truth.drift]
        if not moments or max(moments) <= last_ns:
            return []
        many = "any" if min(moments) > last_ns else "some"
        times = " to ".join(dict.fromkeys(f"{at(moments) / 1e9:g}" for at in (min, max)))
        told = f"a run ended before {many} of the fleet's events and drifts (at {times} s)"
        return [f"{told}, and no request met those"]

    # -- what the scheduler is told

    def targets(self) -> list[TargetSpec]:
        """The targets that are up at the start."""
        return [device.spec for device in self.devices]

    def events(self) -> list[tuple[int, Event]]:
        """The events that the scheduler is told of, with their times."""
        specs = {device.spec.id: device.spec for device in self.devices}
        events: list[tuple[int, Event]] = []
        for incident in self.script:
            if incident.what == "down":
                event = TargetDown(incident.target_id, "as scripted", incident.for_ns)
                events.append((incident.at_ns, event))
            elif incident.what == "up":
                events.append((incident.at_ns, TargetUp(specs[incident.target_id])))
        return events

    def models(self) -> list[str]:
        """All models that run on some target."""
        return sorted({o.model for device in self.devices for o in device.spec.offers})

    def base_ns(self) -> dict[str, int]:
        """Per model, the median latency of one request alone on the fastest target."""
        base: dict[str, int] = {}
        for device in self.devices:
            transfer_ns = device.spec.transfer(0)
            for offer in device.spec.offers:
                alone_ns = median_high(offer.latency_ns[1]) + transfer_ns
                base[offer.model] = min(alone_ns, base.get(offer.model, alone_ns))
        return base

    def check(self, kinds: Iterable[RequestClass]) -> None:
        """Checks that every kind of request can run on some target.

        Raises:
            FleetError: A kind can't; the message names the closest match.
        """
        known = {(o.model, o.variant) for device in self.devices for o in device.spec.offers}
        models = self.models()
        for kind in kinds:
            if kind.model not in models:
                hint = did_you_mean(kind.model, models)
                raise FleetError(
                    f"model {kind.model!r} runs nowhere in fleet {self.name!r}; {hint}"
                )
            if kind.variant is not None and (kind.model, kind.variant) not in known:
                variants = sorted(variant for model, variant in known if model == kind.model)
                raise FleetError(
                    f"variant {kind.variant!r} of model {kind.model!r} runs nowhere in fleet "
                    f"{self.name!r}; {did_you_mean(kind.variant, variants)}"
                )

    # -- what is true

    def true_times(self, seed: int | str) -> ServiceTimes:
        """The true service times of each batch, equally likely, before drift and slow spells.

        For a device with a tempo these are the times at its fastest moment, which a clairvoyant
        could wait for. Where a model takes inputs of any size, all inputs are taken to be of the
        size known to be fastest.
        """
        table = self._table(seed) | {
            rung: (max(1, int(usual_ns * least)),) for rung, usual_ns, least in self._steady()
        }
        for target_id, offer, _, least in self._sized():
            for size in offer.latency_ns:
                rung = target_id, offer.model, offer.variant, size
                table[rung] = tuple(max(1, int(least * ns)) for ns in table[rung])

        def times(target_id: str, offer: Offer, size: int) -> Sequence[int]:
            return table[target_id, offer.model, offer.variant, size]

        return times

    def service_time(self, seed: int | str) -> ServiceTime:
        """Draws true service times, independently for each target."""
        table = self._table(seed) | {
            rung: (max(1, round(usual_ns)),) for rung, usual_ns, _ in self._steady()
        }
        offers = {
            (device.spec.id, offer.model, offer.variant): offer
            for device in self.devices
            for offer in device.spec.offers
        }
        chances = {
            device.spec.id: random.Random(f"{seed} service {device.spec.id}").random
            for device in self.devices
        }

        # An input smaller than all known sizes is no faster; the bounds assume the same.
        sized = {
            (target_id, offer.model, offer.variant): (offer, known, least)
            for target_id, offer, known, least in self._sized()
        }

        def service_ns(run: Dispatch, kind: RequestClass) -> int:
            size = offers[run.target_id, run.model, run.variant].size_for(len(run.request_ids))
            samples = table[run.target_id, run.model, run.variant, size]
            drawn_ns = samples[int(chances[run.target_id]() * len(samples))]
            if sized and (found := sized.get((run.target_id, run.model, run.variant))):
                offer, known, least = found
                factor = max(least, factor_at(step_of(offer.elements(kind.shapes)), known))
                drawn_ns = max(1, round(factor * drawn_ns))
            return drawn_ns

        return service_ns

    def _sized(self) -> Iterator[tuple[str, Offer, Sequence[tuple[int, float]], float]]:
        """Offers for inputs of any size: target, offer, factors by size step, the least factor."""
        for device in self.devices:
            for offer in device.spec.offers:
                known = device.truth.sizes.get((offer.model, offer.variant))
                if known:
                    yield device.spec.id, offer, known, min(factor for _, factor in known)

    def _steady(self) -> Iterator[tuple[_Rung, float, float]]:
        """For devices with a tempo: each rung, its usual time, and the least factor on that."""
        for device in self.devices:
            tempo = device.truth.tempo
            if tempo is not None:
                for (model, variant, size), usual_ns in tempo.usual_ns.items():
                    rung = device.spec.id, model, variant, size
                    yield rung, usual_ns * device.truth.bias, tempo.least

    def _table(self, seed: int | str) -> dict[_Rung, tuple[int, ...]]:
        table = {}
        for device in self.devices:
            truth = device.truth
            noise = [1.0]
            if truth.sigma:
                steps = lognormal_samples(1e9, truth.sigma, NOISE_STEPS)
                noise = [step / 1e9 for step in steps]
            for offer in device.spec.offers:
                name = device.spec.id, offer.model, offer.variant
                chance = random.Random(f"{seed} profile {' '.join(name)}")
                wrong = 1 + truth.misprediction * (2 * chance.random() - 1)
                factors = [truth.bias * wrong * each for each in noise]
                for size, profiled in offer.latency_ns.items():
                    samples = truth.times.get((offer.model, offer.variant, size), profiled)
                    table[name[0], name[1], name[2], size] = tuple(
                        max(1, int(sample * factor)) for sample in samples for factor in factors
                    )
        return table

    def world(self, seed: int | str = FIRST_SEED) -> FleetWorld:
        """Links, drift, tempo, slow spells and stalls."""
        links = {d.spec.id: d.link for d in self.devices if d.link is not None}
        courses = {}
        for device in self.devices:
            course = course_of(self.script, device.spec.id, device.truth.drift)
            tempo = device.truth.tempo
            courses[device.spec.id] = replace(course, tempo=tempo and tempo.placed(seed))
        uneven = {target_id: course for target_id, course in courses.items() if course != Course()}
        widths = {d.spec.id: d.spec.width for d in self.devices}
        shared = {d.spec.id: d.truth.submit_ns for d in self.devices if d.truth.submit_ns}
        handover = {d.spec.id: d.truth.handover_ns for d in self.devices}
        return FleetWorld(links, uneven, widths, shared, handover)

    def conditions(self, seed: int | str = 0) -> dict[str, Conditions]:
        """What the bounds need to know; what they can't express is taken in their favour."""
        longest = self._longest_ns(seed)
        names: dict[int, str] = {}
        shares: dict[int, float] = {}  # by link, like the names
        for device in self.devices:
            smaller = [form.share for form in device.spec.forms]
            shares[id(device.link)] = min([shares.get(id(device.link), 1.0), *smaller])
        found = {}
        for device in self.devices:
            course = course_of(self.script, device.spec.id, device.truth.drift)
            link, share = device.link, shares[id(device.link)]
            out_ns, back_ns = link.least_ns() if link else (0, 0)
            up = spans_up(self.script, device.spec.id)
            if link is None and course.stalls:
                up = without_stalls(up, course, longest[device.spec.id])
            whole = up == [(-FAR_NS, FAR_NS)]
            found[device.spec.id] = Conditions(
                out_ns,
                back_ns,
                None if whole else tuple(up),
                device.spec.width,
                course.slow,
                link.byte_ns * share if link else 0.0,
                link.shared(names.setdefault(id(link), device.spec.id), share) if link else None,
            )
        return found

    def _longest_ns(self, seed: int | str) -> dict[str, int]:
        longest: dict[str, int] = {}
        for (target_id, *_), samples in self._table(seed).items():
            longest[target_id] = max(max(samples), longest.get(target_id, 0))
        return longest


def way_to(spec: TargetSpec) -> Link | None:
    """A link just as the scheduler expects it to be; None for a target on this box."""
    return Link(*spec.transfer_ns) if spec.remote else None
