"""The status and statistics of a box for Prometheus, in its text exposition format.

https://prometheus.io/docs/instrumenting/exposition_formats/. Names follow Prometheus' own rules:
base units (seconds, bytes), and `_total` for counters. Metrics that a box does not have are left
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BREAKER = ("closed", "half-open", "open")
_TELEMETRY = {
    "utilisation": ("utilisation_ratio", "Share of time that the device is busy"),
    "memory_used_bytes": ("memory_used_bytes", "Memory in use by all processes"),
    "memory_total_bytes": ("memory_total_bytes", "Total memory"),
    "temperature_c": ("temperature_celsius", "Temperature of the hottest sensor"),
    "clock_hz": ("clock_hertz", "Clock rate; the mean of several cores"),
    "power_w": ("power_watts", "Power draw; that of the box if only that is metered"),
    "core_wait": ("core_wait_ratio", "Share of its time on the CPU spent waiting for a core"),
}
"""Name and help text of each metric, by its key in a device's telemetry."""

Labels = Mapping[str, str]


def metrics(status: Mapping[str, Any], statistics: Iterable[Mapping[str, Any]]) -> bytes:
    """All metrics of a box.

    Args:
        status: The box's answer to `status`.
        statistics: Its answer to `statistics`.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Box(status, list(statistics)))
    return generate_latest(registry)


class _Box(Collector):
    def __init__(self, status: Mapping[str, Any], statistics: list[Mapping[str, Any]]) -> None:
        self._status = status
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        yield from _whole(self._status)
        yield from _to_look_at(self._status)
        yield from _models(self._statistics)
        yield from _targets(self._status["targets"])
        yield from _shrunk(self._status["targets"])
        yield from _clouds([t for t in self._status["targets"] if "breaker" in t])
        yield from _cache(self._status["cache"])
        yield from _others(self._status)


def _gauge(name: str, text: str, *values: tuple[Labels, float]) -> Metric:
    return _filled(GaugeMetricFamily, name, text, values)


def _counter(name: str, text: str, *values: tuple[Labels, float]) -> Metric:
    return _filled(CounterMetricFamily, name, text, values)


def _filled(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    values: Sequence[tuple[Labels, float]],
) -> Metric:
    family = kind(f"laxity_{name}", text, labels=list(values[0][0]) if values else [])
    for labels, value in values:
        family.add_metric(list(labels.values()), value)
    return family


def _whole(status: Mapping[str, Any]) -> Iterator[Metric]:
    about = {"site": status["site"], "version": status["version"]}
    yield _gauge("info", "This box", ({**about, "policy": status["policy"]["name"]}, 1))
    yield _gauge("uptime_seconds", "Time since the scheduler started", ({}, status["uptime_s"]))
    yield _gauge("draining", "1 while new requests are refused", ({}, status["draining"]))
    yield _gauge("held_requests", "Requests without an outcome yet", ({}, status["held"]))
    ended = status["outcomes"].items()
    text = "Requests by outcome"
    yield _counter("requests", text, *(({"outcome": name}, n) for name, n in ended))
    queued: dict[str, int] = {}
    for queue in status["queues"]:
        queued[queue["model"]] = queued.get(queue["model"], 0) + queue["requests"]
    text = "Requests waiting for a target"
    yield _gauge("queued_requests", text, *(({"model": m}, n) for m, n in queued.items()))
    dropped = status["journal"] and status["journal"].get("dropped")
    if dropped is not None:
        yield _counter("journal_dropped", "Steps that the journal had no room for", ({}, dropped))


def _to_look_at(status: Mapping[str, Any]) -> Iterator[Metric]:
    found = {
        "settings": len(status["not_taken_over"]),
        "policy": status["policy_problem"] is not None,
    }
    for part, key in (("journal", "journal"), ("tasks", "durable")):
        if status[key] is not None:
            found[part] = status[key]["problem"] is not None
    if status["cache"] is not None:
        stores = status["cache"]["redis"], status["cache"]["central"]
        found["cache"] = sum(not store["open"] for store in stores if store is not None)
    if status["neighbours"] is not None:
        found["neighbours"] = len(status["neighbours"]["not_joined"])
    text = "Problems that `laxity status` tells of, by part of the box"
    yield _gauge("problems", text, *(({"part": part}, count) for part, count in found.items()))
    if (certificate := status["certificate"]) is not None:
        text = "When the certificate of the doors expires"
        name, expires = "certificate_expiry_timestamp_seconds", certificate["expires_unix_s"]
        yield _gauge(name, text, ({}, expires))


def _models(statistics: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    of = [({"model": s["name"], "variant": s["version"]}, s["inference_stats"]) for s in statistics]
    for key, name, text in (
        ("queue", "queue_seconds", "Time that requests with a result spent queued"),
        ("compute_input", "transfer_seconds", "Time that requests with a result spent in transfer"),
        ("compute_infer", "execute_seconds", "Time that requests with a result spent executing"),
    ):
        yield _counter(name, text, *((labels, stats[key]["ns"] / 1e9) for labels, stats in of))
    text = "Requests without a result, refusals included"
    yield _counter("failures", text, *((labels, stats["fail"]["count"]) for labels, stats in of))
    yield _durations(statistics)
    text = "Batches that ran"
    runs = (
        ({"model": s["name"], "variant": s["version"], "size": str(b["batch_size"])}, b)
        for s in statistics
        for b in s["batch_stats"]
    )
    yield _counter("batches", text, *((labels, b["compute_infer"]["count"]) for labels, b in runs))


def _durations(statistics: Iterable[Mapping[str, Any]]) -> Metric:
    family = HistogramMetricFamily(
        "laxity_request_duration_seconds",
        "From a request's arrival until its result",
        labels=("model", "variant"),
    )
    for each in statistics:
        at_most, buckets = 0, []
        for bound_ms, count in each["durations"]:
            at_most += count
            buckets.append(("+Inf" if bound_ms is None else repr(bound_ms / 1e3), at_most))
        total_s = each["inference_stats"]["success"]["ns"] / 1e9
        family.add_metric((each["name"], each["version"]), buckets, total_s)
    return family


def _targets(targets: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    def named(target: Mapping[str, Any]) -> Labels:
        return {"target": target["id"]}

    yield _gauge("target_up", "1 while the target is up", *((named(t), t["up"]) for t in targets))
    yield _gauge(
        "target_batches", "Batches at the target now", *((named(t), t["runs"]) for t in targets)
    )
    if made_up := [(named(t), 1) for t in targets if t.get("emulated")]:
        yield _gauge("target_emulated", "1 for a target that is emulated", *made_up)
    promises = [
        ({"target": t["id"], "quantile": f"{c['promised']:g}"}, c)
        for t in targets
        for c in t["calibration"]
    ]
    text = "Batches with a predicted quantile of their duration"
    yield _counter("predictions", text, *((labels, c["batches"]) for labels, c in promises))
    text = "Batches that finished within the predicted quantile"
    yield _counter("predictions_kept", text, *((labels, c["kept"]) for labels, c in promises))
    telemetry = [(named(t), t["telemetry"]) for t in targets if t["telemetry"]]
    for key, (name, text) in _TELEMETRY.items():
        if told := [(labels, known[key]) for labels, known in telemetry if key in known]:
            yield _gauge(f"target_{name}", text, *told)
    key, text = "over_current_events", "How often the device was throttled for over-current"
    if held_back := [(labels, known[key]) for labels, known in telemetry if key in known]:
        yield _counter(f"target_{key}", text, *held_back)
    drawn = [(named(t), t["energy"]) for t in targets if t.get("energy")]
    if drawn:
        text = "Energy used by the target's batches"
        yield _counter("target_energy_joules", text, *((n, e["joules"]) for n, e in drawn))
    if telemetry:
        text = "1 while the device is throttled"
        slow = ((labels, bool(known.get("throttled"))) for labels, known in telemetry)
        yield _gauge("target_throttled", text, *slow)


def _shrunk(targets: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    used = [
        ({"target": target["id"], "model": each["model"], "form": each["form"]}, each["batches"])
        for target in targets
        for each in target.get("shrunk", ())
    ]
    if used:
        yield _counter("shrunk_batches", "Batches whose inputs were made smaller", *used)


def _clouds(clouds: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    if not clouds:
        return
    named = [({"target": cloud["id"]}, cloud) for cloud in clouds]
    states = [
        ({**labels, "state": state}, cloud["breaker"]["state"] == state)
        for labels, cloud in named
        for state in _BREAKER
    ]
    yield _gauge("cloud_breaker", "1 for the state that the breaker is in", *states)
    text = "How often the breaker opened"
    yield _counter("cloud_breaker_trips", text, *((n, c["breaker"]["trips"]) for n, c in named))
    text = "Batches that may be in flight at once"
    yield _gauge("cloud_limit_batches", text, *((n, c["limit"]) for n, c in named))
    text = "Cost of the batches so far, in the unit of the configuration"
    yield _counter("cloud_spent", text, *((n, c["spending"]["spent"]) for n, c in named))
    text = "The median round trip of small messages"
    trips = ((n, c["way"]["round_trip_ms"] / 1e3) for n, c in named)
    yield _gauge("cloud_round_trip_seconds", text, *trips)
    yield _gauge(
        "cloud_loss_ratio",
        "Share of probes that were lost",
        *((n, c["way"]["loss"]) for n, c in named),
    )
    for way in ("sent", "received"):
        told = ((n, c["way"][f"{way}_bytes"]) for n, c in named)
        yield _counter(f"cloud_{way}_bytes", f"Bytes {way}", *told)


def _cache(cache: Mapping[str, Any] | None) -> Iterator[Metric]:
    if cache is None:
        return
    hits, skipped = cache["hits"].items(), cache["skipped"].items()
    text = "Requests answered without running, by what answered"
    yield _counter("cache_hits", text, *(({"by": name}, count) for name, count in hits))
    text = "Skipped look-ups in a part of the cache, by reason"
    yield _counter("cache_skipped", text, *(({"why": name}, count) for name, count in skipped))
    for name, text in (
        ("misses", "Requests that were looked up and had to run"),
        ("stale", "Answers found but too old"),
        ("stored", "Answers stored"),
        ("evicted", "Answers evicted to make room for others"),
    ):
        yield _counter(f"cache_{name}", text, ({}, cache[name]))
    yield _gauge("cache_entries", "Answers in memory", ({}, cache["entries"]))
    yield _gauge("cache_bytes", "Memory that the answers take", ({}, cache["bytes"]))


def _others(status: Mapping[str, Any]) -> Iterator[Metric]:
    if status["durable"] is not None:
        waiting, running = status["durable"]["waiting"], status["durable"]["running"]
        tasks = ({"state": "waiting"}, waiting), ({"state": "running"}, running)
        yield _gauge("tasks", "Durable tasks without a result", *tasks)
    if status["neighbours"] is not None:
        members = status["neighbours"]["members"]
        text = "1 while no other box of the site is heard"
        yield _gauge("alone", text, ({}, status["neighbours"]["alone"]))
        boxes = [t for t in status["targets"] if "forwarded" in t]
        for name, text in (
            ("forwarded", "Requests sent to other boxes"),
            ("refused", "Forwarded requests that other boxes refused at once"),
        ):
            yield _counter(f"neighbour_{name}", text, *(({"box": t["id"]}, t[name]) for t in boxes))
        heard = (({"box": m["name"], "state": m["state"]}, 1) for m in members)
        yield _gauge("neighbours", "Other boxes of the site, by state", *heard)
