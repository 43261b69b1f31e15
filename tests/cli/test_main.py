from __future__ import annotations

import copy
import json
import os
import re
import shlex
import subprocess
import sys
import time
from importlib import metadata
from io import StringIO
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from rich.table import Table

from replay.explaining import Step, Tale
from scheduler import wire
from scheduler.cli import doctor, explain, status, tasks
from scheduler.cli.infer_view import save
from scheduler.cli.status_view import headline, status_view
from scheduler.cli.streams import print_json
from scheduler.cli.tables import duration, models_view, outputs_view, top_values
from scheduler.client.tasks import TaskStatus
from scheduler.doctor.findings import Finding
from scheduler.shares import percent
from scheduler.tenants import hash_of
from tests.fake_box import FakeBox, Peer

COMMANDS = [
    "",
    "demo",
    "status",
    "models",
    "infer",
    "config",
    "config check",
    "config schema",
    "replay link",
    "doctor",
    "optimize",
    "profile",
    "explain",
    "top",
    "token",
]

DIGITS: dict[str, Any] = {
    "name": "digits",
    "description": "Handwritten digits",
    "batched": True,
    "max_batch": 8,
    "inputs": [{"name": "image", "dtype": "float32", "shape": [1, 2, 2]}],
    "outputs": [{"name": "scores", "dtype": "float32", "shape": [10]}],
    "variants": [
        {
            "name": "large",
            "targets": [
                {
                    "target": "cpu:0",
                    "runtime": "openvino",
                    "accuracy": 0.9926,
                    "latency_ms": {
                        "1": {"p50": 5.0, "p95": 6.25},
                        "8": {"p50": 32.0, "p95": 33.0},
                    },
                }
            ],
        },
        {"name": "small", "targets": []},
    ],
}
PAIR = {
    **DIGITS,
    "name": "pair",
    "inputs": [{"name": name, "dtype": "float32", "shape": [1]} for name in ("left", "right")],
    "variants": [],
}
PROBLEMS = [
    {"device": "cpu:0", "model": "broken/fp32", "reason": "not an ONNX file"},
    {"device": "cpu:0", "model": "bare", "reason": "move model.onnx to 1/model.onnx"},
]
STATUS = {
    "site": "line-3",
    "version": "0.1.0",
    "pid": 77,
    "uptime_s": 3725.5,
    "draining": False,
    "policy": {"name": "goodput", "quantile": 0.95},
    "held": 3,
    "queues": [
        {"model": "digits", "variant": None, "requests": 3},
        {"model": "pair", "variant": None, "requests": 0},
    ],
    "outcomes": {"completed": 1999, "late": 0, "infeasible": 1},
    "targets": [
        {
            "id": "cpu:0",
            "up": True,
            "runs": 1,
            "pid": 78,
            "progress": {"done": 1, "total": 1, "text": "ready"},
        },
        {
            "id": "gpu:0",
            "up": False,
            "runs": 0,
            "pid": None,
            "progress": {"done": 3, "total": 8, "text": "digits/large: openvino, batch 4"},
        },
        {
            "id": "eu",
            "up": True,
            "runs": 2,
            "progress": {"done": 1, "total": 1, "text": "ready"},
            "breaker": {"state": "half-open", "trips": 1, "reason": "no answer"},
            "limit": 12,
            "way": {
                "round_trip_ms": 14.25,
                "jitter_ms": 3.0,
                "loss": 0.0156,
                "bandwidth_mbps": 42.0,
                "sent_bytes": 10,
                "received_bytes": 20,
            },
            "spending": {
                "spent": 0.25,
                "budgets": [{"seconds": 3600, "limit": 0.5, "spent": 0.2}],
            },
        },
        {
            "id": "npu:0",
            "up": True,
            "runs": 1,
            "progress": {"done": 1, "total": 1, "text": "ready"},
            "energy": {"joules": 1234.5, "cost": 0.000103},
            "costs": {"cost_per_request": 0.0, "cost_per_s": 0.0, "cost_per_kwh": 0.3},
        },
        {
            "id": "press-shop-north-2",
            "up": True,
            "runs": 0,
            "peer": True,
            "forwarded": 1234,
            "refused": 5,
            "progress": {"done": 1, "total": 1, "text": "ready"},
            "reported": [
                {"model": "digits", "variant": "small", "wait_ms": 0.0, "room": 8},
                {"model": "digits", "variant": "large", "wait_ms": 7.5, "room": 3},
            ],
            "way": {
                "round_trip_ms": 0.512,
                "jitter_ms": 0.1,
                "loss": 0.0,
                "bandwidth_mbps": None,
                "sent_bytes": 10,
                "received_bytes": 20,
            },
        },
    ],
    "neighbours": {
        "box": "press-shop-north-1",
        "alone": False,
        "members": [
            {
                "name": "press-shop-north-2",
                "address": "tls://press-shop-north-2.plant.example:18702",
                "state": "up",
                "heard_s": 0.2,
            },
            {"name": "c", "address": "tcp://10.0.0.9:1", "state": "gone", "heard_s": None},
        ],
    },
}


class Box(FakeBox):
    """Says what a real box says of itself."""

    def take(self, peer: Peer, header: wire.Header) -> None:
        answers = {"models": {"models": [DIGITS, PAIR], "problems": PROBLEMS}, "status": STATUS}
        if header["t"] in ("load", "unload"):
            self.note(peer, header)
            peer.send({"t": "reply", "id": header["id"], "value": None})
        elif header["t"] in answers:
            peer.send({"t": "reply", "id": header["id"], "value": answers[header["t"]]})
        else:
            super().take(peer, header)


@pytest.fixture
def box(tmp_path, monkeypatch):
    box = Box(tmp_path / "s").start()
    monkeypatch.setenv("LAXITY_URL", box.url)
    yield box
    box.close()


@pytest.fixture
def scan(tmp_path):
    path = tmp_path / "scan.npy"
    np.save(path, np.array([[0, 16], [8, 4]], np.uint8))
    return str(path)


class TestHelp:
    @pytest.mark.parametrize("command", COMMANDS)
    def test_every_command_teaches_by_example(self, laxity, command):
        status, out, _ = laxity(*command.split(), "--help")
        assert status == 0
        assert "Examples" in out or command == "config"

    @pytest.mark.parametrize("command", COMMANDS)
    def test_the_examples_are_right(self, laxity, command):
        _, out, _ = laxity(*command.split(), "--help")
        for line in re.findall(r"^ *laxity (.*)$", out, re.MULTILINE):
            words = shlex.split(line, comments=True)
            ends = [words.index(sign) for sign in "|>" if sign in words]
            assert laxity(*words[: min(ends, default=None)], "--help")[0] == 0, line

    def test_the_version(self, laxity):
        status, out, _ = laxity("--version")
        assert (status, out.split()[0]) == (0, "laxity")

    @pytest.mark.parametrize(
        "words", ["modles", "infer", "infer digits", "status --wacht", "demo --json /"]
    )
    def test_a_wrong_command_line_is_status_2(self, laxity, words):
        status, out, err = laxity(*words.split())
        assert (status, out) == (2, "")
        assert "laxity" in err

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("status --interval 3", "--interval goes with --watch"),
            ("infer digits -i x.npy --durable --top 3", "--top is of a result"),
            ("infer digits -i x.npy --durable -o x.npz", "--output is of a result"),
            ("infer digits -i x.npy --durable --accept-late", "--accept-late goes without"),
            ("explain --journal x --url unix:///x", "leave --url out"),
        ],
    )
    def test_an_option_that_would_do_nothing_is_refused(self, laxity, words, said):
        status, out, err = laxity(*words.split())
        assert (status, out) == (2, "")
        assert said in err

    @pytest.mark.parametrize(
        ("words", "option", "value"),
        [
            ("infer digits -i x.npy --deadline-ms 50ms", "--deadline-ms", "50ms"),
            ("replay load-1_2 --seeds 0", "--seeds", "0"),
            ("top --count 1.5 --json", "--count", "1.5"),
        ],
    )
    def test_a_value_that_is_none_is_shown(self, laxity, words, option, value):
        status, _, err = laxity(*words.split())
        assert status == 2
        assert option in err
        assert f"'{value}'" in err
        assert "Input" not in err

    @pytest.mark.parametrize(
        "words",
        [
            ("infer", "digits", "-i", "x.npy", "--variant", ""),
            ("infer", "digits", "-i", ""),
            ("infer", "digits", "--input="),
            ("infer", "", "-i", "x.npy"),
            ("status", "--url", ""),
            ("replay", ""),
            ("replay", "load-1_2", "--fleet", ""),
            ("replay", "load-1_2", "--report", ""),
            ("policy", "test", ""),
            ("doctor", "--config", ""),
        ],
    )
    def test_what_is_given_is_not_empty(self, laxity, words):
        """As `--fleet "$FLEET"` is without that variable: nothing takes its place."""
        status, out, err = laxity(*words)
        assert (status, out) == (2, "")
        assert "it is empty" in err

    def test_what_a_terminal_cannot_show_is_replaced(self):
        ended = subprocess.run(
            [sys.executable, "-m", "scheduler.cli", "pull", "--help"],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            check=True,
        )
        assert b"file:// ?" in ended.stdout


class TestWithoutABox:
    @pytest.mark.parametrize("words", ["status", "models", "infer digits -i x.npy"])
    def test_it_says_so_in_one_line(self, laxity, tmp_path, monkeypatch, words):
        monkeypatch.setattr("scheduler.cli.box.CONNECT_TIMEOUT_S", 0.05)
        status, out, err = laxity(*words.split(), "--url", f"unix://{tmp_path}/nobody")
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert "is edge_agent running?" in err

    @pytest.mark.parametrize(
        ("words", "status", "code"),
        [
            ("status --json", 1, "unavailable"),
            ("models --json", 1, "unavailable"),
            ("task list --json", 1, "unavailable"),
            ("status --json --url 10.0.0.7:8701", 2, "invalid_address"),
            ("status --json --interval 3", 2, "usage"),
            ("config check none.yaml --json", 1, "invalid_config"),
            ("pull digits --from https://h --models none --json", 2, "usage"),
            (f"pull digits --from https://h --models {'n' * 300} --json", 2, "usage"),
            ("status --wacht --json", 2, "usage"),
            ("infer --json", 2, "usage"),
            ("infer digits --json --top many", 2, "usage"),
            ("infer digits --json --input", 2, "usage"),
            ("models --json --url=", 2, "usage"),
            ("modles --json", 2, "usage"),
            ("task lst --json", 2, "usage"),
            ("task --all list --json", 2, "usage"),
            ("--json status", 2, "usage"),
        ],
    )
    def test_a_program_is_told_in_json(self, laxity, tmp_path, monkeypatch, words, status, code):
        monkeypatch.setattr("scheduler.cli.box.CONNECT_TIMEOUT_S", 0.05)
        monkeypatch.setenv("LAXITY_URL", f"unix://{tmp_path}/nobody")
        ended, out, err = laxity(*words.split())
        assert (ended, out, err.count("\n")) == (status, "", 1)
        told = json.loads(err)
        assert (told["code"], bool(told["error"])) == (code, True)

    @pytest.mark.parametrize("words", ["status --wacht", "demo --json /", "replay --json /x --no"])
    def test_a_person_is_told_in_words(self, laxity, words):
        """Also where `--json` is the place of a file."""
        status, out, err = laxity(*words.split())
        assert (status, out) == (2, "")
        assert "laxity" in err
        assert not err.startswith("{")

    def test_what_belongs_to_an_error_is_told_in_json(self, box, laxity, monkeypatch, tmp_path):
        box.on_task = lambda peer, header: peer.refuse(header, "overloaded", "full", limit="waits")
        _, out, err = laxity("task", "list", "--json")
        assert (out, json.loads(err)) == (
            *("", {"error": "full", "code": "overloaded", "limit": "waits"}),
        )

    def test_an_address_that_is_none(self, laxity):
        status, _, err = laxity("status", "--url", "10.0.0.7:8701")
        assert status == 2
        assert "did you mean 'tcp://10.0.0.7:8701'?" in err


class TestStatus:
    def test_a_table(self, box, laxity):
        status, out, err = laxity("status")
        assert (status, err) == (0, "")
        assert "line-3" in out
        assert "laxity 0.1.0 · pid 77 · up 1 h 2 min · policy goodput (quantile 0.95) · 3 held" in (
            " ".join(out.split())
        )
        assert re.search(r"cpu:0 +up +1 +78 +unknown +ready", out)
        assert re.search(r"gpu:0 +down .* openvino, batch 4 +3/8", out)
        assert re.search(r"npu:0 +up +1 +1,23[45] +0.000103 +ready", out)
        assert re.search(r"completed +1,999 +99.95 % +in time", out)
        assert re.search(r"digits +any +3", out)
        assert "late" not in out

    def test_a_policy_is_told_with_the_one_that_it_wraps(self):
        inner = {"name": "spill", "budget_per_hour": 3, "inner": {"name": "edf"}}
        policy = {"name": "hedge", "extra": 0.1, "inner": inner}
        told = "policy hedge (extra 0.1, inner spill (budget_per_hour 3, inner edf))"
        assert told in headline({"policy": policy}).plain

    def test_a_policy_that_gave_way_and_what_was_not_taken_over_are_named(self):
        console = Console(file=StringIO(), width=100, color_system=None)
        problems: dict[str, Any] = {
            "policy_problem": "mine.py: OSError: [/b] disk",
            "not_taken_over": ["edge.yaml: changes to devices wait for the next start"],
        }
        console.print(status_view({**STATUS, **problems}))
        assert isinstance(console.file, StringIO)
        out = console.file.getvalue()
        told = " ".join(out.split())
        assert "is tried again when the configuration is saved: mine.py: OSError: [/b] disk" in told
        (not_taken_over,) = problems["not_taken_over"]
        assert f"Changed but not applied: {not_taken_over}" in out

    @pytest.mark.parametrize("version", ["0.0.9", metadata.version("laxity"), None])
    def test_a_box_that_has_yet_to_be_restarted_after_an_upgrade_is_named(self, version):
        console = Console(file=StringIO(), width=100, color_system=None)
        console.print(status_view({**STATUS, "version": version}))
        assert isinstance(console.file, StringIO)
        told = "It runs laxity 0.0.9, and this command is "
        assert (told in console.file.getvalue()) == (version == "0.0.9")

    @pytest.mark.parametrize(
        ("days", "said"),
        [(-1, "has expired"), (29.5, "expires in 29 d 11 h"), (30.5, "")],
    )
    def test_a_certificate_that_expires_soon_is_named(self, days, said):
        console = Console(file=StringIO(), width=100, color_system=None)
        certificate = {"file": "/box.pem", "expires_unix_s": time.time() + days * 86_400}
        console.print(status_view({**STATUS, "certificate": certificate}))
        assert isinstance(console.file, StringIO)
        assert ("The certificate /box.pem" in console.file.getvalue()) == bool(said)
        assert said in console.file.getvalue()

    @pytest.mark.parametrize("limit", [5, 0])
    def test_a_budget_that_was_spent_before_the_box_started_is_shown(self, limit):
        spent = {"spent": 0.0, "budgets": [{"seconds": 86_400, "limit": limit, "spent": 5.0}]}
        listed: Any = STATUS["targets"]
        (cloud,) = [target for target in listed if target["id"] == "eu"]
        console = Console(file=StringIO(), width=100, color_system=None)
        console.print(status_view({**STATUS, "targets": [{**cloud, "spending": spent}]}))
        assert isinstance(console.file, StringIO)
        assert re.search(rf"eu +0 +{limit} in any day +5, 100.0 %", console.file.getvalue())

    @pytest.mark.parametrize(
        ("closed_s", "told"),
        [(0.01, "eu +up +2 +ready"), (7_300.5, "eu +not used +2 +its budget pays .* in 2 h 1 min")],
    )
    def test_a_cloud_whose_budget_is_spent_is_not_said_to_be_used(self, closed_s, told):
        listed: Any = STATUS["targets"]
        (cloud,) = [target for target in listed if target["id"] == "eu"]
        spent = {**cloud["spending"], "closed_s": closed_s}
        console = Console(file=StringIO(), width=120, color_system=None)
        console.print(status_view({**STATUS, "targets": [{**cloud, "spending": spent}]}))
        assert isinstance(console.file, StringIO)
        assert re.search(told, console.file.getvalue())

    @pytest.mark.parametrize(
        ("about", "told"),
        [
            ({"problem": "Read-only file system"}, "can't be written: Read-only file system"),
            ({"problem": "No space", "dropped": 2_248}, "No space; 2,248 events are missing in it"),
            ({"problem": None, "dropped": 3}, "/j is written again: 3 events are missing in it"),
        ],
    )
    def test_a_journal_that_is_not_whole_is_named(self, about, told):
        console = Console(file=StringIO(), width=100, color_system=None)
        console.print(status_view({**STATUS, "journal": {"folder": "/j", **about}}))
        assert isinstance(console.file, StringIO)
        assert told in " ".join(console.file.getvalue().split())

    def test_what_lies_beyond_the_box(self, box, laxity):
        _, out, _ = laxity("status")
        assert re.search(r"eu +half-open +12 +14.2 ms +3 ms +1.6 % +42", out)
        assert re.search(r"press-shop-north-2 +0.512 ms +0.1 ms +0.0 %", out)
        assert re.search(r"eu +0.25 +0.5 in any hour +0.2, 40.0 %", out)
        assert re.search(r"press-shop-north-2 +up +0 s ago +8 +1,234 +5", out)
        assert re.search(r"c +gone: .* +never +0 +0", out)
        assert re.search(
            r"^press-shop-north-2 at tls://press\S+\nc at tcp://10.0.0.9:1$", out, re.M
        )

    def test_a_way_that_was_never_taken_has_no_figures(self):
        targets: Any = STATUS["targets"]
        (cloud,) = (target for target in targets if target["id"] == "eu")
        away = {**cloud, "up": False, "way": {**cloud["way"], "round_trip_ms": 0.0}}
        console = Console(file=StringIO(), width=200, color_system=None)
        console.print(status_view({**STATUS, "targets": [away]}))
        assert isinstance(console.file, StringIO)
        assert "half-open" not in console.file.getvalue()

    @pytest.mark.parametrize(("late_ns", "is_said"), [(900_000_000, False), (4 * 10**9, True)])
    def test_a_device_that_seems_to_hang_is_said_to(self, late_ns, is_said):
        targets: Any = STATUS["targets"]
        hangs = {**targets[0], "up": True, "overdue_ns": late_ns}
        console = Console(file=StringIO(), width=200, color_system=None)
        console.print(status_view({**STATUS, "targets": [hangs]}))
        assert isinstance(console.file, StringIO)
        told = "a batch should have been over 4 s ago" in console.file.getvalue()
        assert told == is_said

    @pytest.mark.parametrize(("batches", "told"), [(1, "0 of 1 within"), (20, "0.0 % within")])
    def test_a_share_of_few_batches_is_told_as_their_number(self, batches, told):
        targets: Any = STATUS["targets"]
        kept = [{"promised": 0.95, "batches": batches, "kept": 0}]
        target = {**targets[0], "calibration": kept}
        console = Console(file=StringIO(), width=200, color_system=None)
        console.print(status_view({**STATUS, "targets": [target]}))
        assert isinstance(console.file, StringIO)
        assert f"ready; {told} the 95% predicted" in console.file.getvalue()

    def test_an_emulated_device_is_said_to_be_one(self):
        targets: Any = STATUS["targets"]
        console = Console(file=StringIO(), width=200, color_system=None)
        console.print(status_view({**STATUS, "targets": [{**targets[0], "emulated": True}]}))
        assert isinstance(console.file, StringIO)
        assert "emulated, so it answers zeros; ready" in console.file.getvalue()

    @pytest.mark.parametrize("width", [60, 80, 140])
    def test_no_name_or_figure_is_cut_off_at_any_width(self, width):
        console = Console(file=StringIO(), width=width, color_system=None)
        console.print(status_view(STATUS))
        assert isinstance(console.file, StringIO)
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        figures = ("1,234", "14.2 ms", "0.512 ms", "0.000103", "99.95 %", "half-open")
        assert [figure for figure in figures if width >= 80 and figure not in text] == []

    def test_json(self, box, laxity):
        assert json.loads(laxity("status", "--json")[1]) == STATUS

    def test_a_box_that_is_cut_off(self, box, laxity, monkeypatch):
        targets: Any = STATUS["targets"]
        (cloud,) = (target for target in targets if target["id"] == "eu")
        eu = {**cloud, "breaker": {"state": "open", "reason": "no answer"}}
        why = "box box-b: no report came for 0.7 s"
        peer = {
            "id": "box-b",
            "up": False,
            "runs": 0,
            "forwarded": 12,
            "refused": 3,
            "progress": {"done": 0, "total": 0, "text": why},
            "reported": [{"model": "digits", "variant": "small", "wait_ms": 0.0, "room": 8}],
            "way": {**eu["way"], "bandwidth_mbps": None},
        }
        member = {"name": "box-b", "address": "tcp://10.0.0.8:8702", "state": "suspected"}
        neighbours = {
            "box": "box-a",
            "alone": True,
            "not_joined": [{"address": "tcp://10.0.0.9:8702", "reason": "another site"}],
            "address": "tcp://10.0.0.7:8702",
            "not_reached_by": ["box-c", "box-d"],
            "members": [
                {**member, "heard_s": 3.2, "version": "0.0.9"},
                {**member, "name": "box-c", "heard_s": 3.2, "version": None},
                {**member, "name": "box-d", "heard_s": 3.2},
                {**member, "name": "box-e", "heard_s": 0.2, "state": "up", "version": None},
            ],
        }
        told = {**STATUS, "targets": [eu, peer], "neighbours": neighbours}
        monkeypatch.setitem(globals(), "STATUS", told)
        out = laxity("status")[1]
        assert re.search(r"eu +not used +2 +retried automatically: no answer", out)
        assert re.search(r"box-b +down +0 +box box-b: no report came for 0.7 s", out)
        assert re.search(r"box-b +14.2 ms", out), "a box has no breaker, but a way"
        assert "this one serves its own callers alone" in out
        assert "Not joined: tcp://10.0.0.9:8702: another site" in out
        assert "Not reached by box-c, box-d at tcp://10.0.0.7:8702, so sent nothing: " in out
        silent = r"box-b +suspected: silent, is sent nothing +3 s ago +12 +3\b"
        assert re.search(silent, out)
        assert "box-b at tcp://10.0.0.8:8702, laxity 0.0.9\n" in out
        assert "box-c at tcp://10.0.0.8:8702\nbox-d at tcp://10.0.0.8:8702\n" in out
        assert "box-e at tcp://10.0.0.8:8702, an older laxity\n" in out

    def test_what_the_cache_did(self, box, laxity, monkeypatch):
        link = {"url": "redis://r:1/0", "open": True, "problem": "", "p95_ms": 0.3}
        away = {"url": "redis://c:1/0", "open": False, "problem": "refused", "p95_ms": None}
        cache = {
            "hits": {"memory": 2, "redis": 1, "near": 0, "running": 0},
            "skipped": {"model": 0, "budget": 4}, "invalid": 6, "gave_up": 7,
            "misses": 1, "stale": 0, "entries": 1, "bytes": 2e6, "redis": link, "central": away,
        }  # fmt: skip
        monkeypatch.setitem(STATUS, "cache", cache)
        _, out, _ = laxity("status")
        assert "cache  3 hits (75.0 %) · 2 memory · 1 redis · 1 misses" in out
        told = " ".join(out.split())
        assert "4 skipped for budget · 6 invalid · 7 not waited for · 1 kept in 2.0 MB" in told
        assert "redis  redis://r:1/0 · up, p95 0.3 ms\n" in out
        assert "central  redis://c:1/0 · refused" in out
        link |= {"refused": 1234, "refusal": "out of memory"}
        _, out, _ = laxity("status")
        told = "0.3 ms · takes no new answers (1,234 refused): out of memory"
        assert told in " ".join(out.split())

    def test_who_explains_what_is_no_id_learns_what_is_one(self, box, laxity):
        box.on_task = lambda peer, header: peer.refuse(header, "task_not_found", "no task 'abc'")
        _, _, err = laxity("explain", "abc")
        assert "no task 'abc'; a request's id is a number, and `laxity explain` lists" in err

    def test_why_tasks_are_refused_has_a_line_of_its_own(self, box, laxity, monkeypatch):
        monkeypatch.setitem(
            STATUS, "durable", {"waiting": 0, "running": 0, "problem": "/s/tasks: full"}
        )
        _, out, _ = laxity("status")
        assert "0 durable tasks, 0 of them with a target\n/s/tasks: full\n" in out

    def test_a_box_of_another_version_is_shown_as_far_as_it_goes(self, box, laxity, monkeypatch):
        monkeypatch.setitem(globals(), "STATUS", {"site": "test"})
        status, out, _ = laxity("status")
        assert status == 0
        assert "No targets yet." in out

    def test_rates_are_of_the_time_between(self):
        before = {"uptime_s": 10.0, "outcomes": {"completed": 5}}
        now = {"uptime_s": 12.0, "outcomes": {"completed": 25, "late": 1}}
        assert status._rates(before, now) == {"completed": 10.0, "late": 0.5}
        assert status._rates(now, before) == {}
        assert status._rates({**before, "pid": 1}, {**now, "pid": 2}) == {}


class TestModels:
    def test_a_table(self, box, laxity):
        status, out, _ = laxity("models")
        assert status == 0
        assert "image float32 [1, 2, 2]" in out
        assert re.search(r"large +cpu:0 +openvino +99.3 % +1 +5 +6.25 +200", out)
        assert re.search(r"^ +8 +32 +33 +250", out, re.MULTILINE)
        assert re.search(r"small +no target yet", out)
        assert "cpu:0  broken/fp32: not an ONNX file" in out
        assert "timed  with" not in out

    def test_the_size_at_which_a_model_was_measured(self):
        shapes = {"measured_shapes": {"image": [3, 640, 480], "label": [1]}}
        table, model = StringIO(), copy.deepcopy(DIGITS)
        variant = model["variants"][0]
        targets = [{**variant["targets"][0], **shapes, "target": f"cpu:{i}"} for i in range(2)]
        variant["targets"] = targets
        Console(file=table, width=100).print(models_view([model], []))
        assert "\ntimed  with image [3, 640, 480], label [1]\n" in table.getvalue()

    def test_how_many_items_a_slow_model_does_in_a_second(self):
        table, model = StringIO(), copy.deepcopy(DIGITS)
        model["variants"][0]["targets"][0]["latency_ms"] = {"1": {"p50": 3000.0, "p95": 3100.0}}
        Console(file=table, width=100).print(models_view([model], []))
        assert re.search(r"1 +3,000 +3,100 +0\.333", table.getvalue())

    def test_the_lengths_to_which_inputs_are_padded(self):
        table, model = StringIO(), copy.deepcopy(DIGITS)
        model["inputs"][0]["padded_to"] = [16, 64]
        Console(file=table, width=100).print(models_view([model], []))
        assert "\npads   image to 16, 64\n" in table.getvalue()

    def test_one_of_them(self, box, laxity):
        found = json.loads(laxity("models", "pair", "--json")[1])
        assert [model["name"] for model in found["models"]] == ["pair"]
        assert found["problems"] == []

    def test_one_is_taken_out_of_service_and_put_back(self, box, laxity, monkeypatch):
        for option, loaded in (("--unload", False), ("--load", True)):
            monkeypatch.setitem(DIGITS, "loaded", loaded)
            status, out, _ = laxity("models", "digits", option)
            assert status == 0
            assert ("unloaded: requests for it are refused" in out) is not loaded
            ((_, asked),) = box.messages(option.strip("-"))
            assert asked["model"] == "digits"
        status, _, err = laxity("models", "--unload")
        assert (status, "say which model" in err) == (2, True)

    def test_a_name_that_is_nearly_right(self, box, laxity):
        status, out, err = laxity("models", "digit")
        assert (status, out) == (1, "")
        assert "did you mean 'digits'?" in err

    @pytest.mark.parametrize("words", ["models bare", "infer bare -i {scan}"])
    def test_one_that_cannot_be_served(self, box, laxity, scan, words):
        status, out, err = laxity(*words.format(scan=scan).split())
        assert (status, out) == (1, "")
        assert err == "laxity: model 'bare' can't be served: move model.onnx to 1/model.onnx\n"


ASK = ("infer", "digits", "--deadline-ms", "60000")


class TestInfer:
    def test_what_was_done_and_what_came(self, box, laxity, scan):
        status, out, err = laxity(*ASK, "--input", scan, "--top", "2")
        assert (status, err) == (0, "")
        assert "image: shape [2, 2] -> [1, 2, 2], uint8 -> float32" in out
        assert "completed: digits/fp32 on cpu:0 (echo)" in out
        assert re.search(r"ms of 60,000 ms, .* ms left", out)
        assert re.search(r"0,1 +16 .*█\n +1,0 +8 ", out)

    def test_without_a_deadline_it_is_a_tenth_of_a_second(self, box, laxity, scan):
        _, out, err = laxity("infer", "digits", "-i", scan)  # a busy machine may need longer
        assert "ms of 100 ms" in out or "deadline of 100 ms" in err

    def test_what_is_asked_for_is_sent(self, box, laxity, scan):
        words = "--deadline-ms 5000 --variant int8 --priority 0 --accept-late --exact"
        assert laxity("infer", "digits", "-i", scan, *words.split())[0] == 0
        ((_, header),) = box.wait("infer")
        assert (header["variant"], header["priority"], header["late"]) == ("int8", 0, True)
        assert header["exact"] is True
        assert header["in"] == [["image", "float32", [1, 2, 2]]]
        assert 100e6 < header["budget_ns"] <= 5000e6

    @pytest.mark.parametrize("words", [(), ("--durable",)])
    @pytest.mark.parametrize("deadline", ["0", "-1", "nan", "inf", "1e30"])
    def test_no_time_at_all_is_not_the_default(self, box, laxity, scan, deadline, words):
        status, out, err = laxity("infer", "digits", "-i", scan, "--deadline-ms", deadline, *words)
        assert (status, out) == (2, "")
        assert "--deadline-ms is more than 0" in err
        assert not box.messages("models"), "no box is needed to see that"

    @pytest.mark.parametrize("words", [(), ("--json",)])
    def test_tasks_that_are_kept_are_named_though_the_next_is_refused(
        self, box, laxity, scan, words
    ):
        def take_two(peer, header):
            if len(box.messages("task")) > 2:
                peer.refuse(header, "overloaded", "2 tasks are kept already")
            else:
                value = {"task": header["task"], "new": True}
                peer.send({"t": "reply", "id": header["id"], "value": value})

        box.on_task = take_two
        command = ("infer", "digits", "-i", scan, "--durable", "--repeat", "4", *words)
        status, out, err = laxity(*command)
        assert status == 1
        assert "2 tasks are kept already" in err
        ids = json.loads(out)["tasks"] if words else out.split()
        assert ids == [header["task"] for _, header in box.messages("task")[:2]]

    def test_what_was_noted_of_an_answer_is_said(self, box, laxity, scan):
        notes = {"shrunk": "image as float16 for eu"}
        box.on_infer = lambda peer, header: peer.answer(header, notes=notes)
        assert "\nshrunk: image as float16 for eu\n" in laxity(*ASK, "-i", scan)[1]
        found = json.loads(laxity(*ASK, "-i", scan, "--json")[1])
        assert found["requests"][0]["notes"] == notes

    def test_json_and_a_file(self, box, laxity, scan, tmp_path):
        out_file = tmp_path / "out.npz"
        words = ["--json", "--repeat", "3", "--output", str(out_file)]
        status, out, err = laxity(*ASK, "-i", scan, *words)
        found = json.loads(out)
        assert status == 0
        assert str(out_file) in err
        assert [request["outcome"] for request in found["requests"]] == ["completed"] * 3
        assert set(found["requests"][0]["timing_ms"]) == {"queue", "transfer", "execute", "total"}
        assert found["outputs"]["image"]["values"] == [[[0, 16], [8, 4]]]
        assert found["outputs"]["image"]["top"][0] == {"index": "0,1", "value": 16}
        assert np.load(out_file)["image"].tolist() == [[[0, 16], [8, 4]]]

    def test_a_refusal_names_what_is_possible(self, box, laxity, scan):
        box.on_infer = lambda peer, header: peer.refuse(
            header, "infeasible", "no target", earliest_budget_ms={"cpu:0": 41.23}
        )
        status, out, err = laxity(*ASK, "-i", scan)
        assert status == 1
        assert "result" not in out
        told = re.fullmatch(
            r"laxity: infeasible: no target; possible now: --deadline-ms ([0-9.]+)\n", err
        )
        assert told is not None
        assert 41.3 <= float(told[1]) < 1_000, "the way to the box and back comes on top"

    def test_what_is_possible_is_never_rounded_down(self, box, laxity, scan):
        box.on_infer = lambda peer, header: peer.refuse(
            header, "infeasible", "no target", earliest_budget_ms={"cpu:0": 2_345_674.2}
        )
        _, _, err = laxity(*ASK, "-i", scan)
        told = re.search(r"--deadline-ms ([0-9.]+)\n", err)
        assert told is not None
        assert float(told[1]) >= 2_345_674.2

    def test_some_of_many_are_refused(self, box, laxity, scan):
        def every_other(peer: Peer, header: wire.Header) -> None:
            if len(box.messages("infer")) % 2:
                peer.answer(header)
            else:
                peer.refuse(header, "overloaded", "full")

        box.on_infer = every_other
        status, out, err = laxity(*ASK, "-i", scan, "--repeat", "4")
        assert status == 1
        assert "2 completed, 2 overloaded; p50 " in out
        assert err == "laxity: 2 of 4 without a result; the first: overloaded: full\n"

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            ("infer digitz -i {scan}", "did you mean 'digits'?"),
            ("infer digits -i img={scan}", "no input 'img'; it has image"),
            ("infer digits -i /nowhere/x.npy", "/nowhere/x.npy can't be read"),
            ("infer digits -i {notes}", "is not a NumPy file, picture or text"),
            ("infer digits -i {text}", "'image' is float32 [1, 2, 2]; the file has string"),
            ("infer digits -i {scan} -i {scan}", "'image' is given twice"),
            ("infer digits -i {scan} --levels black", "--levels is BLACK:WHITE"),
            ("infer digits -i {scan} --levels nan:1", "--levels is BLACK:WHITE"),
            ("infer digits -i {scan} --levels 0:inf", "--levels is BLACK:WHITE"),
            ("infer digits -i {scan} --levels 1:1", "--levels is BLACK:WHITE"),
            ("infer digits -i {scan}[5]", "has 2 items; there is no item 5"),
            ("infer pair -i {scan}", "--input left="),
            ("infer pair -i left={one}", "no --input for right (float32 [1])"),
            ("infer digits -i {scan}[1] -o {scan}", "is an input; name another file to write to"),
        ],
    )
    def test_inputs_that_do_not_do(self, box, laxity, scan, tmp_path, words, said):
        text, notes, one = (tmp_path / name for name in ("notes.txt", "notes.md", "one.npy"))
        for file in (text, notes):
            file.write_text("not an array")
        np.save(one, np.ones(1, np.float32))
        status, out, err = laxity(*words.format(scan=scan, text=text, notes=notes, one=one).split())
        assert (status, out, err.count("\n")) == (1 if "digitz" in words else 2, "", 1)
        assert said in err

    def test_pictures_need_pillow(self, box, laxity, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "PIL", None)
        status, _, err = laxity("infer", "digits", "-i", str(tmp_path / "scan.png"))
        assert status == 2
        assert "pip install 'laxity[image]'" in err

    def test_a_picture(self, box, laxity, tmp_path):
        path = tmp_path / "scan.png"
        Image.new("RGB", (30, 20), "white").save(path)
        status, out, _ = laxity(*ASK, "-i", str(path), "--levels", "16:0", "--json")
        found = json.loads(out)
        assert status == 0
        assert found["outputs"]["image"]["values"] == [[[0, 0], [0, 0]]]
        assert found["inputs"]["image"]["steps"] == [
            "30x20 RGB",
            "grayscale",
            "resized to 2x2",
            "black to white as 16 to 0",
            "float32 [1, 2, 2]",
        ]

    def test_sixteen_bits_are_not_cut_down_silently(self, box, laxity, tmp_path):
        path = tmp_path / "deep.png"
        Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save(path)
        status, _, err = laxity("infer", "digits", "-i", str(path))
        assert status == 2
        assert "more than 8 bits" in err

    def test_an_archive_names_its_inputs_itself(self, box, laxity, tmp_path):
        path = tmp_path / "both.npz"
        np.savez(path, left=np.ones(1, np.float32), right=np.zeros(1, np.float32))
        words = ["--deadline-ms", "60000", "--json"]
        status, out, _ = laxity("infer", "pair", "-i", str(path), *words)
        assert status == 0
        assert json.loads(out)["outputs"]["left"]["values"] == [1]

    def test_an_item_of_an_array_in_an_archive(self, box, laxity, tmp_path):
        path = tmp_path / "scans.npz"
        np.savez(path, images=np.arange(12.0).reshape(3, 2, 2), labels=np.arange(3))
        status, out, _ = laxity(*ASK, "-i", f"{path}:images[2]", "--json")
        assert status == 0
        assert json.loads(out)["outputs"]["image"]["values"] == [[[8, 9], [10, 11]]]
        status, _, err = laxity("infer", "digits", "-i", str(path))
        assert status == 2
        assert f"--input image={path}:images" in err


class TestConfig:
    def test_a_good_one(self, laxity, tmp_path):
        path = tmp_path / "edge.yaml"
        path.write_text("site: line-3\npolicy: {name: edf}\nlisten: {http: '127.0.0.1:8700'}\n")
        status, out, err = laxity("config", "check", str(path))
        assert (status, err) == (0, "")
        assert f"{path} is good" in out
        assert "line-3" in out
        assert re.search(r"http +http://127.0.0.1:8700\n", out)
        assert "grpc" not in out
        filled = json.loads(laxity("config", "check", str(path), "--json")[1])
        assert filled["listen"]["http"] == ["127.0.0.1:8700"]
        assert (filled["policy"]["name"], filled["drain_s"]) == ("edf", 10.0)

    def test_a_file_in_the_place_of_a_folder_is_told(self, laxity, tmp_path):
        path = tmp_path / "edge.yaml"
        path.write_text("models: edge.yaml\nstate_dir: edge.yaml\n")
        _, out, _ = laxity("config", "check", str(path))
        assert re.search(r"models +\S+edge.yaml \(not a folder\)\n", out)
        assert re.search(r"state +\S+edge.yaml \(not a folder\)\n", out)
        path.write_text("models: none\n")
        assert "none (no such folder yet)" in laxity("config", "check", str(path))[1]

    def test_what_can_not_be_looked_at_is_told(self, laxity, tmp_path):
        """As in a folder of another user."""
        path, long = tmp_path / "edge.yaml", "n" * 300
        path.write_text(f"models: {long}\ntoken_file: {long}\n")
        _, out, _ = laxity("config", "check", str(path))
        assert re.search(r"models +\S+n \(can't be read: File name too long\)\n", out)
        assert re.search(r"token +\S+n \(can't be read by this user\)\n", out)

    def test_one_for_a_cloud_of_ones_own_is_checked_as_that(self, laxity, tmp_path):
        status, out, err = laxity("config", "check", "configs/cloud.yaml")
        assert (status, err) == (0, "")
        assert "cloud.yaml is good, for laxity cloud up:" in out
        assert re.search(r"http +http://127.0.0.1:8800\n", out)
        assert re.search(r"replicas 1 to 4\n", out)
        as_json = json.loads(laxity("config", "check", "configs/cloud.yaml", "--json")[1])
        assert as_json["replicas"]["max"] == 4
        path = tmp_path / "cloud.yaml"
        path.write_text(
            "replicas: {max: 2}\nlimts: {}\ndevices: [{id: 'cpu:0', options: {streems: 2}}]\n"
        )
        told = laxity("config", "check", str(path))[2]
        assert ":2: limts: unknown key; did you mean 'limits'?" in told
        path.write_text(
            "replicas: {max: 2}\ntoken_file: token\ndevices: [{id: 'cpu:0', options: {a: 1}}]\n"
        )
        told = laxity("config", "check", str(path))[2]
        assert ":3: devices[0]: cpu:0: unknown option 'a'" in told
        path.write_text("replicas: {max: 2}\ntoken_file: token\n")
        assert f"{tmp_path / 'token'} (no such file yet)" in laxity("config", "check", str(path))[1]

    def test_one_key_of_a_cloud_makes_no_box_a_cloud(self, laxity, tmp_path):
        path = tmp_path / "edge.yaml"
        path.write_text("name: box-a\nsite: here\n")
        status, _, err = laxity("config", "check", str(path))
        assert status == 1
        assert err.startswith(f"laxity: {path}:1: name: unknown key; known here: site, listen")

    def test_doors_are_listed_as_a_client_writes_them(self, laxity, tmp_path):
        path = tmp_path / "edge.yaml"
        path.write_text("""\
listen: {http: [127.0.0.1:8700, tls://127.0.0.1:8743], grpc: [unix:///run/g.sock, '[::1]:8701']}
tls: {cert: cert.pem, key: key.pem}
""")
        status, out, _ = laxity("config", "check", str(path))
        assert status == 0
        assert re.search(r"http +http://127.0.0.1:8700, https://127.0.0.1:8743\n", out)
        assert re.search(r"grpc +grpc\+unix:///run/g.sock, grpc://\[::1\]:8701\n", out)

    def test_what_is_used_beyond_the_box_is_listed_without_secrets(self, laxity, tmp_path):
        path = tmp_path / "edge.yaml"
        path.write_text("""\
cache: {url: "redis://:hush@10.0.0.5:6379/0"}
cloud: [{name: eu, url: "grpcs://infer.example:443", headers: {x-api-key: hush}}]
listen: {native: tcp://127.0.0.1:8702}
neighbours: {name: box-a, join: [127.0.0.1:8712]}
token_file: token
""")
        status, out, err = laxity("config", "check", str(path))
        assert (status, err) == (0, "")
        assert re.search(r"cache +redis://10.0.0.5:6379/0\n", out)
        assert re.search(r"cloud +eu at grpcs://infer.example:443\n", out)
        assert re.search(r"boxes +this is box-a, joins tcp://127.0.0.1:8712\n", out)
        as_json = laxity("config", "check", str(path), "--json")[1]
        assert list(json.loads(as_json)["cloud"][0]["headers"]) == ["x-api-key"]
        assert "hush" not in out + as_json

    @pytest.mark.parametrize("held", ["", "a-token\nof two lines"])
    def test_a_token_for_a_cloud_that_could_not_be_sent(self, laxity, tmp_path, held):
        path, token = tmp_path / "edge.yaml", tmp_path / "token"
        token.touch(mode=0o600)
        token.write_text(held)
        path.write_text("cloud: [{name: eu, url: 'https://h', token_file: token}]")
        status, _, err = laxity("config", "check", str(path))
        assert status == 1
        assert err == f"laxity: {token}: token_file: should hold a token, in one line\n"

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("sight: x\n", ":1: sight: unknown key; did you mean 'site'?"),
            ("policy: {name: goodputt}\n", "goodput"),
            ("policy: {name: goodput, quantil: 1}\n", "quantil"),
        ],
    )
    def test_mistakes_are_named(self, laxity, tmp_path, text, said):
        path = tmp_path / "edge.yaml"
        path.write_text(text)
        status, out, err = laxity("config", "check", str(path))
        assert (status, out) == (1, "")
        assert said in err

    @pytest.mark.parametrize(
        ("device", "wrong"),
        [
            ("options: {streems: 2}", "devices[0]: cpu:0: unknown option 'streems'"),
            ("options: {threads: 0}", "devices[0]: cpu:0: option 'threads'"),
            ("runtimes: [emulated]", "devices[0]: options of emulated device cpu:0: base_ms"),
            ("runtimes: [emulated, openvino]", "'emulated' answers zeros and must be alone"),
        ],
    )
    def test_settings_that_no_box_could_take_are_mistakes(self, laxity, tmp_path, device, wrong):
        path = tmp_path / "edge.yaml"
        path.write_text(f"devices: [{{id: 'cpu:0', {device}}}]")
        status, out, err = laxity("config", "check", str(path))
        assert (status, out) == (1, "")
        assert wrong in err

    def test_each_mistake_has_its_line(self, laxity, tmp_path):
        path = tmp_path / "edge.yaml"
        path.write_text(
            "site: a\npolicy:\n  name: goodputt\ndevices:\n"
            "- {id: cpu:0, options: {a: 1}}\n- {id: cpu:1, options: {b: 1}}\n"
        )
        status, _, err = laxity("config", "check", str(path))
        assert status == 1
        places = [line.partition(f"{path}:")[2].split(": ")[:2] for line in err.splitlines()]
        assert places == [["2", "policy"], ["5", "devices[0]"], ["6", "devices[1]"]]

    def test_secrets_are_looked_into_where_they_are(self, laxity, tmp_path):
        path, token = tmp_path / "edge.yaml", tmp_path / "token"
        path.write_text(
            "token_file: token\ntls: {cert: cert.pem, key: key.pem}\n"
            "cloud: [{name: eu, url: 'https://h', token_file: eu.token}]\n"
        )
        status, out, _ = laxity("config", "check", str(path))
        assert status == 0
        for missing in ("token", "cert.pem", "key.pem", "eu.token"):
            assert f"{tmp_path / missing} (no such file yet)" in out
        token.touch(mode=0o600)
        status, _, err = laxity("config", "check", str(path))
        assert (status, err) == (
            *(1, f"laxity: {token}: token_file: holds 0 characters; a token has 16 or more\n"),
        )

    def test_cores_of_another_machine_are_pointed_out(self, laxity, tmp_path):
        path = tmp_path / "edge.yaml"
        path.write_text("devices: [{id: 'cpu:0', cores: [0, 4095]}]")
        status, out, _ = laxity("config", "check", str(path))
        assert status == 0
        assert "cpu:0 (core 4095 is not available here)" in out

    def test_cores_that_a_control_group_has_no_time_for_are_pointed_out(
        self, laxity, tmp_path, monkeypatch
    ):
        monkeypatch.setattr("edge_agent.processors.allowed_cpus", lambda root: [0, 1])
        monkeypatch.setattr("edge_agent.processors.quota_cores", lambda root: 1.0)
        path = tmp_path / "edge.yaml"
        path.write_text("devices: [{id: 'cpu:0', cores: [0, 1]}]")
        status, out, _ = laxity("config", "check", str(path))
        assert status == 0
        assert "cpu:0 (core 1 is not available here)" in out

    def test_a_file_that_is_not_there(self, laxity, tmp_path):
        status, _, err = laxity("config", "check", str(tmp_path / "no.yaml"))
        assert status == 1
        assert err.endswith("can't be read: No such file or directory\n")

    @pytest.mark.parametrize("more", [[], ["--json"]])
    def test_the_schema(self, laxity, more):
        status, out, _ = laxity("config", "schema", *more)
        assert status == 0
        assert "policy" in json.loads(out)["properties"]


class TestNarrow:
    def shown(self, table: Table) -> str:
        console = Console(file=StringIO(), width=60, color_system=None)
        console.print(table)
        assert isinstance(console.file, StringIO)
        return console.file.getvalue()

    def test_the_path_in_a_finding_is_whole(self):
        path = f"/{'long/' * 15}state"
        shown = self.shown(doctor._table([Finding("folders", "error", path, f"chmod 700 {path}")]))
        assert "".join(shown.split()).count(path) == 2

    def test_the_reason_of_a_step_is_whole(self, monkeypatch, capsys):
        monkeypatch.setenv("COLUMNS", "60")
        name = "a-model-with-a-name-that-is-longer-than-half-of-a-terminal"
        explain._show_tale(1, Tale("run", None, (Step(5, "submitted", name),)))
        assert name in "".join(capsys.readouterr().out.split())

    def test_the_id_of_a_task_can_be_copied(self):
        task, model = "8f" * 16, "resnet50-classifier"
        status = TaskStatus(task, model, None, "waiting", None, "", 0, 3, 86e3, 1.7e9, None)
        assert task in self.shown(tasks._table([status]))


def test_where_a_result_cannot_go_is_told_before_it_is_waited_for(laxity):
    status, _, err = laxity("task", "result", "8f2c", "-o", "/nowhere/out.npz")
    assert (status, err) == (2, "laxity: /nowhere/out.npz: there is no folder /nowhere\n")


class TestWords:
    def test_a_share_is_never_rounded_to_all(self):
        assert [percent(share) for share in (1.0, 0.9999, 0.99999, 0.5)] == (
            ["100.0 %", "99.99 %", "99.99 %", "50.0 %"]
        )

    def test_durations(self):
        assert [duration(s) for s in (0, 45, 200, 7500, 273_600)] == (
            ["0 s", "45 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"]
        )

    def test_values_that_are_not_finite_are_shown(self):
        console = Console(file=StringIO(), width=60, color_system=None)
        console.print(*outputs_view({"y": np.array([np.inf, 2.0, -np.inf, np.nan])}, 4), sep="\n")
        assert isinstance(console.file, StringIO)
        shown = " ".join(console.file.getvalue().split())
        assert shown == f"y float64 [4] 0 inf 1 2 {'█' * 24} 2 -inf 3 nan"

    def test_top_values_of_any_array(self):
        assert top_values(np.array([[0.1, 0.7, 0.2]]), 2) == [("1", 0.7), ("2", 0.2)]
        assert top_values(np.array(3, np.float32), 5) == [("", 3.0)]
        assert top_values(np.zeros((0, 2)), 5) == []
        assert top_values(np.array([False, True]), 1) == [("1", 1.0)]
        assert str(top_values(np.array([2**62 + 1]), 1)) == "[('', 4611686018427387905)]"

    def test_outputs_are_saved_whatever_their_names(self, tmp_path):
        named = ("file", "allow_pickle", "out/y:0", "scores")
        outputs = {name: np.full((2, 3), place, np.float32) for place, name in enumerate(named)}
        outputs |= {"label": np.array(b"cat"), "count": np.array(3)}
        save(tmp_path / "out.npz", outputs)
        with np.load(tmp_path / "out.npz") as saved:
            assert set(saved.files) == set(outputs)
            for name, array in outputs.items():
                assert saved[name].dtype == array.dtype
                np.testing.assert_array_equal(saved[name], array)

    def test_integers_are_shown_whole(self):
        console = Console(file=StringIO(), width=60, color_system=None)
        console.print(*outputs_view({"label": np.array([123456])}, 1), sep="\n")
        assert isinstance(console.file, StringIO)
        assert " 123456 " in console.file.getvalue()

    def test_json_has_null_for_what_it_cannot_express(self, capsys):
        print_json({"values": [[np.inf, 1.5], (-np.inf, float("nan"))], "n": 3})
        assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == (
            {"values": [[None, 1.5], [None, None]], "n": 3}
        )


def test_a_token_comes_with_what_the_box_keeps_of_it(laxity):
    status, out, _ = laxity("token", "--json")
    made = json.loads(out)
    assert status == 0
    assert made["hash"] == hash_of(made["token"])
    assert laxity("token")[1].split()[1] != made["token"]


@pytest.mark.parametrize(
    ("module", "words"), [("typer", ["--version"]), ("pydantic", ["replay", "load-1_0"])]
)
def test_ctrl_c_while_the_command_is_loaded_leaves_no_traceback(tmp_path, module, words):
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt\n")
    found = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-m", "scheduler.cli", *words],
        env=os.environ | {"PYTHONPATH": found},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
