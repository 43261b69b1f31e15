"""Each program of examples/clients, run as it stands there against a real agent."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from scheduler import Client
from tests.e2e.running_agent import RunningAgent

FOLDER = Path(__file__).parents[3] / "examples/clients"
KSERVE = Path(sys.prefix) / "kserve/bin/python"
"""An environment of its own, made by the Makefile."""

EXPECTED = {
    "curl.sh": '"outcome":"completed"',
    "kserve_sdk.py": "http True 5\ngrpc True 5",
    "plain_http.py": "digit 5 on cpu:0",
    "ray_caller.py": "[5, 5, 5]",
    "shared_memory.py": "[5 5 5 5]",
    "tritonclient_grpc.py": "['0', '1', '2', '3', '4', '5', '6', '7', '8', '9']",
    "tritonclient_grpc_aio.py": "20 answers, {5}",
    "tritonclient_http.py": "(4, 10) small",
    "tritonclient_http_aio.py": "20 answers, {5}",
}


def test_every_example_is_expected_to_say_something() -> None:
    assert {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".sh")} == set(
        EXPECTED
    )


def interpreter_of(name: str) -> str:
    """What runs an example."""
    if name == "curl.sh":
        if not shutil.which("curl"):
            pytest.skip("curl is not installed on this machine")
        return "sh"
    if name != "kserve_sdk.py":
        return sys.executable
    if sys.version_info >= (3, 14):
        pytest.skip("KServe's SDK has no release for this Python")
    if not KSERVE.exists():
        pytest.skip(f"KServe's SDK is installed by: make {KSERVE.parents[2].name}/.kserve")
    return str(KSERVE)


def test_shared_memory_is_removed_if_the_box_is_not_there() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "shared_memory.py")],
        env={**os.environ, "LAXITY_GRPC": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "in register_system_shared_memory" in done.stderr
    assert "leaked shared_memory" not in done.stderr


def test_the_counter_offer_of_plain_http_is_always_shown(tmp_path: Path) -> None:
    """On the models that ship with laxity, for which it is written."""
    agent = RunningAgent(
        tmp_path,
        Path(str(resources.files("configs"))) / "models",
        listen={"http": "127.0.0.1:0"},
        devices=[{"id": "cpu:0", "runtimes": ["emulated"], "options": {"base_ms": 20}}],
        profile={"seconds": 0.1},
    )
    try:
        for _ in range(5):
            done = subprocess.run(
                [sys.executable, str(FOLDER / "plain_http.py")],
                env={**os.environ, "LAXITY_HTTP": agent.address("http")},
                capture_output=True,
                text=True,
                timeout=100,
            )
            assert done.returncode == 0, done.stderr
            *_, offer = re.findall("^[d4].*", done.stdout, re.M)
            assert re.fullmatch(r"429 infeasible \{'cpu:0': \d+(\.\d{1,3})?\}", offer), offer
    finally:
        agent.end()


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_works(shared_agent: RunningAgent, name: str) -> None:
    with Client(shared_agent.url) as client:
        ray_address = client.status()["ray_address"]
    environment = {
        **os.environ,
        "LAXITY_HTTP": shared_agent.address("http"),
        "LAXITY_GRPC": shared_agent.address("grpc"),
        "RAY_ADDRESS": ray_address,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(Path(shared_agent.settings["state_dir"]) / "ray_token"),
    }
    done = subprocess.run(
        [interpreter_of(name), str(FOLDER / name)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout, done.stdout
    if name == "curl.sh":
        assert len(json.loads(done.stdout)["outputs"][0]["data"]) == 10
