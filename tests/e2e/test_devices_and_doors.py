"""A box with its CPU split into two devices, one of them emulated, one that it does not have, and a
TCP door with a token."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import numpy as np
import pytest

from scheduler import Client, Unauthorized
from tests.e2e.running_agent import ModelsNamed, RunningAgent, policy_that_waits
from tests.waiting import eventually

TOKEN = "a-token-of-some-length"
X = {"x": np.array([-1.0, 0.0, 2.0], np.float32)}
CORES = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs two CPU cores to split")


@pytest.fixture(scope="module")
def agent(
    models_named: ModelsNamed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("split")
    token_file = folder / "token"
    token_file.touch(0o600)
    token_file.write_text(TOKEN)
    emulated = {"base_ms": 1.0, "per_item_ms": 0.5, "link": {"rtt_ms": 4.0, "mbps": 100.0}}
    agent = RunningAgent(
        folder,
        models_named("relu"),
        listen={"native": [f"unix://{folder}/s.sock", "tcp://127.0.0.1:0"]},
        token_file=str(token_file),
        devices=[
            {"id": "cpu:0", "cores": [CORES[0]], "runtimes": ["onnxruntime"]},
            {"id": "cpu:1", "cores": [CORES[1]], "runtimes": ["emulated"], "options": emulated},
            {"id": "npu:7", "runtimes": ["openvino"]},
        ],
    )
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def tcp_url(agent: RunningAgent) -> str:
    said = next(line for line in agent.lines if "tcp://" in line)
    found = re.search(r"tcp://127\.0\.0\.1:\d+", said)
    assert found is not None
    return found[0]


def test_a_client_without_the_token_is_kept_out(agent: RunningAgent, tcp_url: str) -> None:
    for url in (tcp_url, agent.url):
        for token in (None, "not-the-token-at-all"):
            with pytest.raises(Unauthorized, match="token"):
                Client(url, token=token)


def test_a_device_that_it_does_not_have_is_told_in_a_line(agent: RunningAgent) -> None:
    (told,) = (line for line in agent.lines if "npu:7" in line)
    assert told.startswith("npu:7 is not used: ")
    assert [line for line in agent.lines if "creation task" in line or "Error" in line] == []


def test_both_devices_serve_and_an_emulated_answer_says_so(tcp_url: str) -> None:
    with Client(tcp_url, token=TOKEN) as client:
        targets = {target["id"]: target for target in client.status()["targets"]}
        assert [target["up"] for target in targets.values()] == [True, True, False]
        assert [target["emulated"] for target in targets.values()] == [False, True, False]
        assert targets["npu:7"]["progress"]["text"].startswith("not used: ")
        futures = [client.submit("relu", X, deadline_ms=5000) for _ in range(400)]
        by_target = {result.target: result for result in (f.result() for f in futures)}
        assert {name: r.runtime for name, r in by_target.items()} == {
            "cpu:0": "onnxruntime",
            "cpu:1": "emulated",
        }
        np.testing.assert_array_equal(by_target["cpu:0"]["y"], [0, 0, 2])
        np.testing.assert_array_equal(by_target["cpu:1"]["y"], [0, 0, 0])
        targets = next(m for m in client.models()["models"] if m["name"] == "relu")["variants"][0]
        assert {t["target"]: t["runtime"] for t in targets["targets"]}["cpu:1"] == "emulated"


def test_an_emulated_link_takes_its_time_and_the_scheduler_knows(tcp_url: str) -> None:
    with Client(tcp_url, token=TOKEN) as client:
        ways = {t["id"]: t["transfer_ns"] for t in client.status()["targets"]}
        assert ways["cpu:0"] == [0, 0.0]
        assert ways["cpu:1"] == [4_000_000, 80.0]
        futures = [client.submit("relu", X, deadline_ms=5000) for _ in range(400)]
        far = [result for result in (f.result() for f in futures) if result.target == "cpu:1"]
        assert far
        assert min(result.timing.transfer_ns for result in far) >= 4_000_000


def test_a_token_that_is_replaced_does_not_wait_for_a_policy(
    agent: RunningAgent, tcp_url: str
) -> None:
    file, begun, go_on = policy_that_waits(agent.folder)
    agent.write_config(policy={"name": str(file)})
    eventually(begun.exists)
    try:
        (agent.folder / "token").write_text(f"another-{TOKEN}")
        eventually(lambda: lets_in(tcp_url, f"another-{TOKEN}"))
        assert not lets_in(tcp_url, TOKEN)
        with Client(tcp_url, token=f"another-{TOKEN}") as client:
            assert client.status()["policy"]["name"] == "goodput"
    finally:
        go_on.touch()
    with Client(tcp_url, token=f"another-{TOKEN}") as client:
        eventually(lambda: client.status()["policy"]["name"] == str(file))
        assert client.status()["not_taken_over"] == []


def lets_in(url: str, token: str) -> bool:
    with contextlib.suppress(Unauthorized), Client(url, token=token):
        return True
    return False
