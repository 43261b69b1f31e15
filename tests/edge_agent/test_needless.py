from __future__ import annotations

import shutil
import subprocess
import sys
from types import ModuleType

import pytest

from edge_agent import needless
from tests.waiting import PATIENCE_S

RAYLET = ["raylet", "--session_dir=/s", "--node_id=ab", "--dashboard_agent_command=python agent.py"]


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("ray._raylet")
    monkeypatch.setitem(sys.modules, "ray._raylet", module)
    return module


def test_what_runs_for_the_helper_ends_with_the_process_that_started_it(private, tmp_path) -> None:
    said = []
    private.DASHBOARD_AGENT_LISTEN_PORT_NAME = "http"
    private.METRICS_AGENT_PORT_NAME = "grpc"
    private.METRICS_EXPORT_PORT_NAME = "metrics"
    private.persist_port = lambda *words: said.append(words)
    *others, helper = needless._stood_in(RAYLET)
    assert others == RAYLET[:-1]
    assert said == [("/s", "ab", port, -1) for port in ("http", "grpc", "metrics")]
    helper = helper.removeprefix("--dashboard_agent_command=")
    shell = tmp_path / "raylet"
    shutil.copy(shutil.which("sh") or "", shell)
    for wait_s in (0, 1):
        with subprocess.Popen(
            [shell, "-c", f"{helper} & sleep {wait_s}; kill -0 $! && echo runs"],
            stdout=subprocess.PIPE,
        ) as started:
            # Its output is the shell's, so this ends only once both have.
            out, _ = started.communicate(timeout=PATIENCE_S)
        assert out == b"runs\n"


def test_with_other_names_in_a_later_version_ray_starts_as_it_wants(private) -> None:
    started = []
    start = needless._without_agent(lambda command, *_: started.append(command))
    start(RAYLET, "raylet")
    start(["gcs_server"], "gcs_server")
    assert started == [RAYLET, ["gcs_server"]]
    with needless._replaced("no_such_module", "Node", "start", by=lambda _: None):
        pass
    with needless._replaced("node", "NoSuchClass", "start", by=lambda _: None):
        pass
