"""Models that are added to the repository of a running box."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest

from scheduler import Client, ModelNotFound
from tests.e2e import http_requests
from tests.e2e.http_requests import said
from tests.e2e.running_agent import RunningAgent
from tests.waiting import eventually
from tests.workers.onnx_models import relu, save

X = {"x": http_requests.X}


def test_an_added_model_is_served_while_the_others_go_on(tmp_path: Path) -> None:
    models = tmp_path / "models"
    save(relu(), models / "first/1/model.onnx")
    agent = RunningAgent(tmp_path, models, listen={"http": "127.0.0.1:0"})
    done = threading.Event()

    def ask_on() -> set[str]:
        outcomes: set[str] = set()
        with Client(agent.url) as client:
            while not done.wait(0.02):
                outcomes.add(client.infer("first", X, deadline_ms=20_000).outcome)
        return outcomes

    with ThreadPoolExecutor() as pool, Client(agent.url) as client:
        outcomes = pool.submit(ask_on)
        try:
            with pytest.raises(ModelNotFound):
                client.infer("second", X, deadline_ms=20_000)
            save(relu(), models / "second/1/model.onnx")
            save(relu(), models / "astray.onnx")

            eventually(lambda: is_served(client, "second"))
            result = client.infer("second", X, deadline_ms=20_000)

            assert result["y"].tolist() == [0.0, 0.0, 2.0]
            http = HTTPConnection(agent.address("http"), timeout=60)
            assert said(http, "GET", "/v2/models/second/ready")[0] == 200
            http.close()
            eventually(lambda: any('"model added"' in line for line in agent.lines))
            eventually(lambda: client.models()["problems"])
            (problem,) = client.models()["problems"]
            assert problem["model"] == "astray"
            assert problem["reason"].endswith("move it to astray/1/model.onnx")
        finally:
            done.set()
            agent.end()
        assert outcomes.result() == {"completed"}


def is_served(client: Client, name: str) -> bool:
    """Whether a target offers it."""
    described = {model["name"]: model for model in client.models()["models"]}
    return name in described and any(v["targets"] for v in described[name]["variants"])
