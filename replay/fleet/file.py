"""Fleets described in YAML.

models:                                  # profiles, which devices scale
  - {name: detect, variant: fp32, base_ms: 4, per_item_ms: 1, jitter: 0.1}
  - name: classify
    latency: [{batch: 1, p50_ms: 2, p90_ms: 2.4}, {batch: 8, p50_ms: 7, p90_ms: 8}]
boxes:
  - devices:                             # a box without a link is this one
      - {id: "cpu:0", power_w: 12}       # or energy_uj beside each p50_ms; nothing is unmeasured
      - {id: "gpu:0", time_scale: 0.4, drift: [{at_s: 20, factor: 2}]}
  - name: cloud
    link: {rtt_ms: 30, mbps: 100}        # or {trace: ping.log, capacity: lte.mahi}
    devices: [{id: "pool", width: 4, cost_per_request: 0.0001}]
energy: {cost_per_kwh: 0.3}              # makes energy a cost
script:
  - {at_s: 10, target: "gpu:0", event: down, for_s: 5}
  - {at_s: 15, target: "gpu:0", event: up}
  - {at_s: 20, target: "cloud/pool", event: stall, for_s: 3}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from yaml import Node

from replay.fleet.model import Device, Fleet, Truth, lognormal_samples, quantile_samples
from replay.fleet.world import Incident, Link
from replay.links import open_links
from scheduler.config.problems import ConfigError, problems_of, read_yaml_file
from scheduler.config.types import Count, Positive
from scheduler.core.offers import Offer
from scheduler.core.target_specs import TargetSpec

_MS = 1e6
_S = 1e9

MOST_FACTOR = 1_000.0
"""The largest slow-down by a script or a drift; beyond it, the script should take a target down."""

_Amount = Annotated[float, Field(strict=True, ge=0, le=1e9)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Quantiles(_Strict):
    """The measured latency and energy of one batch size."""

    batch: Count = Field(le=65_536)
    p50_ms: Positive
    p90_ms: Positive | None = None
    energy_uj: int | None = Field(default=None, strict=True, ge=0)

    @model_validator(mode="after")
    def _in_order(self) -> Quantiles:
        if self.p90_ms is not None and self.p90_ms < self.p50_ms:
            raise ValueError(f"p90_ms is {self.p90_ms:g}, below p50_ms, {self.p50_ms:g}")
        return self


class ModelProfile(_Strict):
    """How long a variant of a model takes, given per batch size or as a linear function."""

    name: str = Field(min_length=1)
    variant: str = Field(default="default", min_length=1)
    accuracy: _Amount | None = Field(default=None, le=1)
    latency: tuple[Quantiles, ...] = ()
    base_ms: _Amount | None = None
    per_item_ms: _Amount = 0.0
    jitter: _Amount = Field(default=0.05, le=2)
    batches: tuple[Count, ...] = (1, 2, 4, 8, 16)

    @model_validator(mode="after")
    def _has_one_form(self) -> ModelProfile:
        if bool(self.latency) == (self.base_ms is not None):
            raise ValueError("should have either latency or base_ms")
        if self.base_ms is not None and self.base_ms + self.per_item_ms <= 0:
            raise ValueError("base_ms and per_item_ms should not both be 0")
        sizes = [q.batch for q in self.latency] or list(self.batches)
        if 1 not in sizes or min(sizes) < 1 or len(set(sizes)) < len(sizes):
            raise ValueError(f"should have each batch size once, and 1 among them; it has {sizes}")
        return self

    def offer(self, scale: float, rank: int, power_w: float | None = None) -> Offer:
        """The offer of a device with this time scale, which draws `power_w` while it runs."""
        energy_uj = {q.batch: q.energy_uj for q in self.latency if q.energy_uj is not None}
        if self.latency:
            samples = {
                q.batch: quantile_samples(
                    q.p50_ms * _MS * scale, (q.p90_ms or q.p50_ms) * _MS * scale
                )
                for q in self.latency
            }
        else:
            line = [(s, (self.base_ms or 0) + self.per_item_ms * s) for s in self.batches]
            samples = {s: lognormal_samples(ms * _MS * scale, self.jitter) for s, ms in line}
        if power_w is not None:
            drawn = {s: round(median(ns) * power_w / 1e3) for s, ns in samples.items()}
            energy_uj = {**drawn, **energy_uj}
        return Offer(self.name, self.variant, "simulated", samples, rank, self.accuracy, energy_uj)


def _told_apart(models: tuple[ModelProfile, ...]) -> tuple[ModelProfile, ...]:
    names = [(each.name, each.variant) for each in models]
    for name, variant in names:
        if names.count((name, variant)) > 1:
            raise ValueError(f"should have variant {variant!r} of model {name!r} once")
    return models


class Drift(_Strict):
    """The time from which everything takes `factor` times its profile, unknown to the policy."""

    at_s: _Amount
    factor: Positive = Field(le=MOST_FACTOR)


class DeviceFile(_Strict):
    """A target."""

    id: str = Field(min_length=1)
    time_scale: Positive = 1.0
    models: tuple[ModelProfile, ...] = ()
    slots: Count | None = None
    width: Count = 1
    handover_ms: _Amount = 0.0
    lead_ms: _Amount | None = None
    cost_per_request: _Amount = 0.0
    cost_per_s: _Amount = 0.0
    power_w: Positive | None = None
    sigma: _Amount | None = Field(default=None, le=2)
    bias: Positive | None = None
    misprediction: _Amount | None = Field(default=None, lt=1)
    drift: tuple[Drift, ...] | None = None

    _told_apart = field_validator("models")(_told_apart)

    @model_validator(mode="after")
    def _scales_what_it_shares(self) -> DeviceFile:
        if self.models and "time_scale" in self.model_fields_set:
            raise ValueError(
                "time_scale is for the fleet's models; a device's own models are not scaled"
            )
        return self


class LinkFile(_Strict):
    """The link to a box: constants, recordings, or both."""

    rtt_ms: _Amount = 0.0
    mbps: Positive | None = None
    trace: str | None = None
    capacity: str | None = None
    format: Literal["ping", "mahimahi", "mbps"] | None = None
    interval_s: Positive | None = None

    def link(self, folder: Path) -> Link:
        """The link; relative paths of recordings start from the folder."""
        paths = [folder / path for path in (self.trace, self.capacity) if path is not None]
        trace = open_links(paths, self.format, interval_s=self.interval_s) if paths else None
        byte_ns = 8e3 / self.mbps if self.mbps else 0.0
        return Link(round(self.rtt_ms * _MS), byte_ns, trace)


class Box(_Strict):
    """Targets in one place; a box with a link is another box or a cloud."""

    name: str | None = Field(default=None, min_length=1)
    link: LinkFile | None = None
    devices: tuple[DeviceFile, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_a_name_if_it_is_far(self) -> Box:
        if self.link is not None and self.name is None:
            raise ValueError("a box with a link needs a name")
        return self


class Event(_Strict):
    """Something that happens to a target."""

    at_s: _Amount
    target: str
    event: Literal["down", "up", "stall", "slow"]
    for_s: Positive | None = None
    factor: Positive | None = Field(default=None, le=MOST_FACTOR)

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Event:
        if self.event == "stall" and self.for_s is None:
            raise ValueError("a stall should have for_s")
        if self.event == "up" and self.for_s is not None:
            raise ValueError("up should have no for_s: a target stays up until an event `down`")
        if (self.event == "slow") != (self.factor is not None):
            raise ValueError("slow should have a factor, and nothing else should")
        return self


class EnergyPrice(_Strict):
    """The price of a kilowatt-hour, in the unit of the devices' costs."""

    cost_per_kwh: _Amount = 0.0


class FleetFile(_Strict):
    """A fleet. The keys from `sigma` on apply to every device that does not set them itself."""

    name: str | None = None
    models: tuple[ModelProfile, ...] = ()
    boxes: tuple[Box, ...] = Field(min_length=1)
    script: tuple[Event, ...] = ()
    energy: EnergyPrice = EnergyPrice()
    sigma: _Amount = Field(default=0.0, le=2)
    bias: Positive = 1.0
    misprediction: _Amount = Field(default=0.0, lt=1)
    drift: tuple[Drift, ...] = ()

    @model_validator(mode="after")
    def _has_models(self) -> FleetFile:
        for box in self.boxes:
            for device in box.devices:
                if not self.models and not device.models:
                    raise ValueError(f"device {device.id!r} has no models, nor has the fleet")
        return self

    _told_apart = field_validator("models")(_told_apart)

    def fleet(self, name: str, folder: Path) -> Fleet:
        """The fleet that the file describes."""
        devices = []
        for box in self.boxes:
            link = box.link.link(folder) if box.link is not None else None
            devices += [self._device(box, each, link) for each in box.devices]
        incidents = [
            Incident(
                round(e.at_s * _S),
                e.target,
                e.event,
                None if e.for_s is None else round(e.for_s * _S),
                e.factor or 1.0,
            )
            for e in self.script
        ]
        script = sorted(incidents, key=lambda incident: incident.at_ns)
        return Fleet(self.name or name, tuple(devices), tuple(script), tuple(_for_good(script)))

    def _device(self, box: Box, device: DeviceFile, link: Link | None) -> Device:
        far = link is not None
        profiles = device.models or self.models
        scale = 1.0 if device.models else device.time_scale
        ranks: dict[str, int] = {}
        offers = []
        for profile in profiles:
            rank = ranks[profile.name] = ranks.get(profile.name, -1) + 1
            offers.append(profile.offer(scale, rank, device.power_w))
        transfer_ns = (0, 0.0) if link is None else link.expected()
        lead_ms = device.lead_ms
        if lead_ms is None:
            lead_ms = device.handover_ms + transfer_ns[0] / _MS
        spec = TargetSpec(
            f"{box.name}/{device.id}" if far else device.id,
            tuple(offers),
            device.slots or device.width + 1,
            round(lead_ms * _MS),
            cost_per_request=device.cost_per_request,
            cost_per_s=device.cost_per_s,
            remote=far,
            width=device.width,
            transfer_ns=transfer_ns,
            cost_per_kwh=self.energy.cost_per_kwh,
        )
        drift = self.drift if device.drift is None else device.drift
        truth = Truth(
            self.sigma if device.sigma is None else device.sigma,
            self.bias if device.bias is None else device.bias,
            self.misprediction if device.misprediction is None else device.misprediction,
            tuple(sorted((round(step.at_s * _S), step.factor) for step in drift)),
            handover_ns=round(device.handover_ms * _MS),
        )
        return Device(spec, link, truth)


def _for_good(script: Sequence[Incident]) -> Iterator[str]:
    """A note for each target whose return is announced and never comes."""
    last = {i.target_id: i for i in script if i.what in ("down", "up")}
    for each in last.values():
        if each.for_ns is not None and each.what == "down":
            yield (
                f"{each.target_id} is down from {each.at_ns / _S:g} s on: for_s announces its "
                "return, and only an event `up` brings it back"
            )


def read_fleet(path: Path) -> Fleet:
    """Reads a fleet file; relative paths in it start from its folder.

    Raises:
        ConfigError: Lists every mistake in the file, with its line.
        TraceError: The recording of a link can't be read.
        FleetError: Two targets share a name, or the script names a target that doesn't exist.
    """
    data, node = read_yaml_file(path)
    return parse_fleet(data, node, str(path), path.parent)


def parse_fleet(data: Any, node: Node | None, source: str, folder: Path, within: str = "") -> Fleet:
    """A fleet from the mapping that describes it.

    Args:
        data: The mapping.
        node: The node that has the lines of its keys.
        source: The name of the file.
        folder: The folder from which relative paths start.
        within: The key under which the file has the mapping; empty for all of the file.

    Raises:
        Exception: As in `read_fleet`.
    """
    try:
        file = FleetFile.model_validate(data)
    except ValidationError as error:
        found = problems_of(error, FleetFile, node)
        placed = [replace(each, place=f"{within}.{each.place}".strip(".")) for each in found]
        raise ConfigError(source, placed) from None
    return file.fleet(Path(source).stem, folder)
