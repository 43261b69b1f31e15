"""`laxity top`: rates between two looks at a box."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scheduler.cli.top import _view as view
from scheduler.cli.top import activity_between
from tests.fake_box import FakeBox, Peer


def counted(name: str, variant: str, answers: int, fails: int = 0) -> dict[str, Any]:
    """A variant's statistics: each answer 1 ms in the queue, 2 ms running, in batches of 2."""

    def of(count: int, ms: int) -> dict[str, int]:
        return {"count": count, "ns": count * ms * 1_000_000}

    stats = {"success": of(answers, 4), "fail": of(fails, 1)}
    stats |= {"queue": of(answers, 1), "compute_infer": of(answers, 2)}
    ran = answers // 2
    return {"name": name, "version": variant, "execution_count": ran, "inference_stats": stats}


TELEMETRY = {
    "utilisation": 0.5,
    "memory_used_bytes": 3_500_000_000,
    "temperature_c": 71.2,
    "power_w": 12.3,
    "throttled": ["thermal: cpu"],
    "core_wait": 0.23,
}
TARGETS = [
    {"id": "cpu:0", "up": True, "runs": 1, "telemetry": TELEMETRY},
    {"id": "eu", "up": False, "runs": 0},
]
BEFORE = {"site": "line-3", "uptime_s": 10.0, "outcomes": {"completed": 100}, "targets": TARGETS}
NOW = {**BEFORE, "uptime_s": 12.0, "outcomes": {"completed": 140, "expired": 6}}
COUNTED = [counted("a", "fp32", 100), counted("b", "int8", 4)]
COUNTED_NOW = [counted("a", "fp32", 110, 6), counted("b", "int8", 34)]


class BusyBox(FakeBox):
    """Has one look more behind it at each question."""

    looks = 0

    def take(self, peer: Peer, header: Any) -> None:
        if header["t"] == "status":
            value: Any = NOW if self.looks else BEFORE
        elif header["t"] == "statistics":
            value = COUNTED_NOW if self.looks else COUNTED
            self.looks += 1
        else:
            super().take(peer, header)
            return
        peer.send({"t": "reply", "id": header["id"], "value": value})


@pytest.fixture
def top(tmp_path: Path, laxity):
    box = BusyBox(tmp_path / "s").start()
    yield lambda *args: laxity("top", "--url", box.url, "--interval", "0.1", *args)
    box.close()


def test_rates_and_means_are_those_between_the_looks():
    activity = activity_between((BEFORE, COUNTED), (NOW, COUNTED_NOW))
    assert activity["seconds"] == 2.0
    assert activity["outcomes"] == {"completed": 20.0, "expired": 3.0}
    busiest, other = activity["models"]
    assert busiest == {
        "model": "b",
        "variant": "int8",
        "per_s": 15.0,
        "failed_per_s": 0.0,
        "queue_ms": 1.0,
        "execute_ms": 2.0,
        "total_ms": 4.0,
        "batch": 2.0,
    }
    assert (other["per_s"], other["failed_per_s"]) == (5.0, 3.0)


def test_figures_are_told_to_the_thousandth():
    now = {**NOW, "uptime_s": 10.0 + 2.9999999999999996}
    activity = activity_between((BEFORE, COUNTED), (now, [counted("a", "fp32", 107), COUNTED[1]]))
    assert activity["seconds"] == 3.0
    assert activity["outcomes"] == {"completed": 13.333, "expired": 2.0}
    (busy,) = [model for model in activity["models"] if model["per_s"]]
    assert (busy["per_s"], busy["batch"]) == (2.333, 2.333)


def test_a_scheduler_that_was_restarted_has_counted_from_zero():
    fresh = {**NOW, "uptime_s": 4.0, "outcomes": {"completed": 8}}
    activity = activity_between((BEFORE, COUNTED), (fresh, [counted("a", "fp32", 8)]))
    assert activity["outcomes"] == {"completed": 2.0}
    assert activity["models"][0]["per_s"] == 2.0
    # Its last life was shorter than this one.
    before, fresh = {**BEFORE, "uptime_s": 1.0, "pid": 1}, {**fresh, "pid": 2}
    activity = activity_between((before, COUNTED), (fresh, [counted("a", "fp32", 8)]))
    assert activity["outcomes"] == {"completed": 2.0}


def test_a_box_at_rest_has_rates_of_zero_and_no_means():
    later = deepcopy(BEFORE) | {"uptime_s": 11.0}
    for model in activity_between((BEFORE, COUNTED), (later, COUNTED))["models"]:
        assert (model["per_s"], model["queue_ms"], model["total_ms"]) == (0.0, None, None)
        assert model["batch"] is None


def test_people_see_devices_and_the_busiest_models(top):
    status, out, _ = top("--count", "1")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["per", "second", "completed", "20.0", "expired", "3.0"] in lines
    (cpu,) = [line for line in lines if line[:1] == ["cpu:0"]]
    assert cpu[1:8] == ["up", "1", "50.0", "%", "3.5", "71", "12.3"]
    assert " ".join(cpu[8:]) == "thermal: cpu, waiting for a core 23.0 %"
    assert ["eu", "down", "0"] in lines
    assert ["b", "int8", "15.0", "0.0", "2", "1", "2", "4"] in lines


def test_lines_for_programs_are_json_whatever_a_sensor_says(top, monkeypatch):
    monkeypatch.setitem(TELEMETRY, "power_w", float("nan"))
    status, out, _ = top("--count", "1", "--json")
    assert status == 0
    (line,) = out.splitlines()
    assert '"power_w": null' in line


def test_what_happens_once_a_minute_is_not_none_at_all(capsys):
    minute = {**BEFORE, "uptime_s": 70.0, "outcomes": {"completed": 101}}
    seen = activity_between((BEFORE, COUNTED), (minute, [counted("a", "fp32", 101)]))
    Console(width=100).print(view(minute, seen))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["per", "second", "completed", "0.017"] in lines
    assert ["a", "fp32", "0.017", "0.0"] in [line[:4] for line in lines]


def test_looks_that_are_counted_stay_on_the_terminal(tmp_path):
    box = BusyBox(tmp_path / "s").start()
    ours, theirs = pty.openpty()
    command = ["-m", "scheduler.cli", "top", "--url", box.url, "--interval", "0.1", "--count", "2"]
    process = subprocess.Popen([sys.executable, *command], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal says that its other end is closed
        while more := os.read(ours, 4096):
            shown += more
    assert process.wait(60) == 0
    os.close(ours)
    box.close()
    assert b"\x1b[?1049h" not in shown, "a screen of its own takes all away when it ends"
    assert shown.count(b"cpu:0") >= 2
    assert shown.removesuffix(b"\x1b[?25h").endswith(b"\n"), "the prompt gets a line of its own"


def test_scripts_get_a_line_for_each_look(top):
    status, out, _ = top("--count", "2", "--json")
    first, second = map(json.loads, out.splitlines())
    assert status == 0
    assert first["outcomes"]["completed"] == 20.0
    assert second["models"][0]["per_s"] == 0


def test_a_terminal_does_not_break_the_lines_of_scripts(top, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, _ = top("--count", "2", "--json")
    assert [set(json.loads(line)) for line in out.splitlines()] == [
        {"seconds", "outcomes", "models", "targets"}
    ] * 2


def test_each_look_goes_through_a_pipe(top):
    assert top("--count", "2")[1].count("per second") == 2
