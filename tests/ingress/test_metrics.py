"""A box's status and statistics as Prometheus reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from scheduler.core.outcomes import Outcome
from scheduler.daemon.cache.counts import Counts, Hits
from scheduler.daemon.submission import Answer
from scheduler.ingress.metrics import metrics
from scheduler.ingress.oip.metadata import statistics_of
from scheduler.ingress.statistics import Statistics
from scheduler.tenants import OWNER

MS = 1_000_000
DEPLOY = Path(__file__).parents[2] / "deploy"
DEVICE: dict[str, Any] = {
    "id": "cpu:0",
    "up": True,
    "runs": 2,
    "calibration": [{"promised": 0.95, "batches": 200, "kept": 191}],
    "telemetry": {"utilisation": 0.25, "temperature_c": 61.5, "throttled": ["power"]},
}
CLOUD = {
    "id": "cloud:eu",
    "up": False,
    "runs": 0,
    "calibration": [],
    "telemetry": None,
    "breaker": {"state": "half-open", "trips": 3, "reason": "lost"},
    "limit": 8,
    "way": {"round_trip_ms": 16.0, "loss": 0.5, "sent_bytes": 70, "received_bytes": 9},
    "spending": {"spent": 0.25, "budgets": []},
}
STATUS: dict[str, Any] = {
    "site": 'line "3"',
    "version": "1.2.3",
    "uptime_s": 12.5,
    "draining": False,
    "policy": {"name": "goodput"},
    "not_taken_over": [],
    "policy_problem": None,
    "certificate": None,
    "journal": {"dropped": 4, "problem": None},
    "cache": None,
    "durable": None,
    "neighbours": None,
    "held": 3,
    "queues": [
        {"model": "m", "variant": "", "requests": 2},
        {"model": "m", "variant": "small", "requests": 1},
    ],
    "outcomes": {outcome.value: 0 for outcome in Outcome} | {"completed": 7},
    "targets": [DEVICE],
}
CACHE = {
    **Counts(hits=Hits(memory=5), misses=2).describe(),
    "stale": 1, "evicted": 0, "entries": 4, "bytes": 4096,
    "redis": {"open": False}, "central": None,
}  # fmt: skip
PEER = {
    **DEVICE, "id": "b", "forwarded": 9, "refused": 2,
    "energy": {"joules": 1.5, "cost": 0.0},
    "shrunk": [{"model": "m", "form": "x as float16", "batches": 3}],
}  # fmt: skip
WHOLE = {
    **STATUS,
    "targets": [{**DEVICE, "telemetry": {**DEVICE["telemetry"], "power_w": 9.5}}, CLOUD, PEER],
    "cache": CACHE,
    "durable": {"waiting": 6, "running": 1, "problem": "the disk is full"},
    "not_taken_over": ["tenants.yaml: not YAML", "changes to site wait for the next start"],
    "certificate": {"file": "/box.pem", "expires_unix_s": 1.8e9},
    "neighbours": {
        "box": "a",
        "alone": True,
        "not_joined": [{"address": "tcp://c:1", "why": "Connection refused"}],
        "members": [{"name": "b", "address": "b:1", "state": "gone", "heard_s": None}],
    },
}
"""The status of a box that has everything."""


def told(
    status: dict[str, Any], statistics: Statistics | None = None
) -> dict[tuple[str, ...], float]:
    text = metrics(status, [] if statistics is None else statistics.describe()).decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_box_tells_of_itself():
    found = told(STATUS)
    assert found["laxity_info", "1.2.3", "goodput", 'line "3"'] == 1
    assert found["laxity_requests_total", "completed"] == 7
    assert found["laxity_requests_total", "expired"] == 0
    assert found["laxity_queued_requests", "m"] == 3
    assert found["laxity_held_requests",] == 3
    assert found["laxity_journal_dropped_total",] == 4
    assert found["laxity_target_up", "cpu:0"] == 1
    assert found["laxity_target_batches", "cpu:0"] == 2
    assert found["laxity_predictions_total", "0.95", "cpu:0"] == 200
    assert found["laxity_predictions_kept_total", "0.95", "cpu:0"] == 191
    assert found["laxity_target_temperature_celsius", "cpu:0"] == 61.5
    assert found["laxity_target_throttled", "cpu:0"] == 1


def test_what_a_person_has_to_look_at_is_told():
    found = told(WHOLE)
    parts = {key[1]: value for key, value in found.items() if key[0] == "laxity_problems"}
    assert parts == {
        "settings": 2, "policy": 0, "journal": 0, "tasks": 1, "cache": 1, "neighbours": 1
    }  # fmt: skip
    assert found["laxity_certificate_expiry_timestamp_seconds",] == 1.8e9
    failed = told({**STATUS, "policy_problem": "mine.py: KeyError"})
    assert failed["laxity_problems", "policy"] == 1


def test_which_devices_are_emulated_is_told():
    devices = [{**DEVICE, "emulated": False}, {**DEVICE, "id": "npu:0", "emulated": True}]
    found = told({**STATUS, "targets": devices})
    assert found["laxity_target_emulated", "npu:0"] == 1
    assert ("laxity_target_emulated", "cpu:0") not in found


def test_a_jetson_tells_how_often_it_drew_too_much():
    device = {**DEVICE, "telemetry": {"over_current_events": 4}}
    found = told({**STATUS, "targets": [device]})
    assert found["laxity_target_over_current_events_total", "cpu:0"] == 4


def test_a_busy_box_tells_how_long_workers_wait_for_a_core():
    device = {**DEVICE, "telemetry": {"core_wait": 0.4}}
    assert told({**STATUS, "targets": [device]})["laxity_target_core_wait_ratio", "cpu:0"] == 0.4


def test_what_a_box_does_not_have_is_left_out():
    names = {name for name, *_ in told({**STATUS, "journal": None})}
    assert not {name for name in names if "cloud" in name or "cache" in name}
    assert not names & {"laxity_tasks", "laxity_alone", "laxity_journal_dropped_total"}
    assert "laxity_target_power_watts" not in names
    assert "laxity_certificate_expiry_timestamp_seconds" not in names


def test_clouds_caches_tasks_and_neighbours_are_told_where_they_are():
    found = told(WHOLE)
    assert found["laxity_target_up", "cloud:eu"] == 0
    assert found["laxity_cloud_breaker", "cloud:eu", "half-open"] == 1
    assert found["laxity_cloud_breaker", "closed", "cloud:eu"] == 0
    assert found["laxity_cloud_spent_total", "cloud:eu"] == 0.25
    assert found["laxity_cloud_round_trip_seconds", "cloud:eu"] == 0.016
    assert found["laxity_cloud_sent_bytes_total", "cloud:eu"] == 70
    assert found["laxity_cache_hits_total", "memory"] == 5
    assert found["laxity_cache_misses_total",] == 2
    assert found["laxity_tasks", "waiting"] == 6
    assert found["laxity_alone",] == 1
    assert found["laxity_neighbours", "b", "gone"] == 1
    assert found["laxity_neighbour_forwarded_total", "b"] == 9
    assert found["laxity_neighbour_refused_total", "b"] == 2
    assert found["laxity_target_energy_joules_total", "b"] == 1.5
    assert found["laxity_shrunk_batches_total", "b", "m", "x as float16"] == 3


@pytest.fixture
def statistics() -> Statistics:
    counted = Statistics()
    for total_ms in (1, 20, 21, 100_001):
        times = (1 * MS, 2 * MS, 3 * MS, total_ms * MS)
        counted.note(
            "m",
            "v",
            Answer(
                Outcome.COMPLETED, "", {}, batch=1, outputs=([], memoryview(b"")), timing_ns=times
            ),
        )
    counted.note("m", "v", Answer(Outcome.EXPIRED, "", {}))
    return counted


def test_durations_are_a_histogram(statistics):
    found = told(STATUS, statistics)
    bucket = "laxity_request_duration_seconds_bucket"
    counts = {key[1]: value for key, value in found.items() if key[0] == bucket}
    assert (counts["0.001"], counts["0.01"], counts["0.02"], counts["0.033"]) == (1, 1, 2, 3)
    assert (counts["10.0"], counts["30.0"], counts["100.0"], counts["+Inf"]) == (3, 3, 3, 4)
    assert found["laxity_request_duration_seconds_sum", "m", "v"] == pytest.approx(100.043)
    assert found["laxity_request_duration_seconds_count", "m", "v"] == 4
    assert found["laxity_failures_total", "m", "v"] == 1
    assert found["laxity_queue_seconds_total", "m", "v"] == pytest.approx(0.004)
    assert found["laxity_batches_total", "1", "m", "v"] == 4


def test_the_histogram_is_none_of_tritons_words(statistics):
    (shown,) = statistics_of(statistics.describe(), OWNER)
    assert "durations" not in shown
    assert shown["inference_count"] == 4


def queries() -> Iterator[tuple[str, str]]:
    """What the dashboard and the alerts ask Prometheus for, and how it is then shown."""
    for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]:
        yield from ((each["expr"], each["legendFormat"]) for each in panel["targets"])
    for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]:
        yield from ((rule["expr"], str(rule["annotations"])) for rule in group["rules"])


def test_the_dashboard_and_the_alerts_ask_for_what_is_told(statistics):
    labels: dict[str, set[str]] = {"up": set()}
    text = metrics(WHOLE, statistics.describe()).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    asked = list(queries())
    assert len(asked) > 20
    for expression, shown in asked:
        known = {"instance", "job"}
        for name, _, narrowed in re.findall(r"\b(laxity_\w+|up\b)({([^}]*)})?", expression):
            known |= labels[name]
            assert set(re.findall(r"(\w+) *(?:=~|!=|=)", narrowed)) <= known, expression
        groups = re.findall(r"\bby \(([^)]*)\)", expression)
        for group in groups:
            assert set(re.split(", *", group)) <= known, expression
        kept = set(re.split(", *", groups[0])) if groups else known
        assert set(re.findall(r"{{(?: *\$labels\.)?(\w+) *}}", shown)) <= kept, expression
