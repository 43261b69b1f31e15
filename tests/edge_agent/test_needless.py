from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edge_agent import needless
from tests.waiting import PATIENCE_S

RAYLET = [
    *("raylet", "--session_dir=/s", "--node_id=ab", "--node_ip_address=127.0.0.1"),
    "--dashboard_agent_command=python agent.py",
    '--runtime_env_agent_command=python "a b.py" --runtime-env-agent-port=0 --temp-dir=/t',
]


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("ray._raylet")
    monkeypatch.setitem(sys.modules, "ray._raylet", module)
    return module


@pytest.fixture
def said(private: Any) -> list[tuple[str, str, str, int]]:
    """What was said of each port, and what names it has."""
    said: list[tuple[str, str, str, int]] = []
    private.DASHBOARD_AGENT_LISTEN_PORT_NAME = "http"
    private.METRICS_AGENT_PORT_NAME = "grpc"
    private.METRICS_EXPORT_PORT_NAME = "metrics"
    private.RUNTIME_ENV_AGENT_PORT_NAME = "environments"
    private.persist_port = lambda *words: said.append(words)
    return said


def test_where_a_helper_listens_that_begins_later_is_known_before(said) -> None:
    *others, _, later = needless._stood_in(RAYLET)
    assert others == RAYLET[:-2]
    *absent, (*box, name, port) = said
    assert absent == [("/s", "ab", port, -1) for port in ("http", "grpc", "metrics")]
    assert (*box, name) == ("/s", "ab", "environments")
    begun = ["127.0.0.1", str(port), "python", "a b.py", "--temp-dir=/t"]
    assert shlex.split(later)[-6:] == [*begun, f"--runtime-env-agent-port={port}"]


@pytest.mark.parametrize("which", [-2, -1])
def test_what_runs_for_a_helper_ends_with_the_process_that_started_it(
    said, tmp_path: Path, which: int
) -> None:
    shell = tmp_path / "raylet"
    shutil.copy(shutil.which("sh") or "", shell)
    for wait_s in (0, 1):
        _, helper = needless._stood_in(RAYLET)[which].split("_command=", 1)
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
