"""Models that are added to the repository of a running box, or replaced in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from itertools import count, groupby
from pathlib import Path

import numpy as np
import openvino
import pytest
from numpy.typing import NDArray

from scheduler import Client, ModelNotFound, Unavailable
from tests.e2e import http_requests
from tests.e2e.http_requests import said
from tests.e2e.running_agent import RunningAgent
from tests.waiting import eventually
from tests.workers.onnx_models import relu, save, times

X = {"x": http_requests.X}
TWO = "variants: {first: {file: model.onnx}, second: {file: model.onnx}}"
Inputs = Callable[[], dict[str, NDArray[np.float32]]]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """Each test has models of its own there."""
    folder = tmp_path_factory.mktemp("changed")
    models = folder / "models"
    save(relu(), models / "first/1/model.onnx")
    save(relu(), models / "m/1/model.onnx")
    save(relu(), models / "two/model.onnx")
    (models / "two/model.yaml").write_text(TWO)
    agent = RunningAgent(folder, models, listen={"http": "127.0.0.1:0"}, cache={})
    try:
        yield agent
        agent.end()
    finally:
        agent.close()


@pytest.fixture
def models(agent: RunningAgent) -> Path:
    return Path(agent.settings["models"])


def never_kept(number: int) -> dict[str, NDArray[np.float32]]:
    """Inputs to which the cache has no answer yet, if the number is another each time."""
    return {"x": X["x"] + np.float32(number)}


def test_an_added_model_is_served_while_the_others_go_on(agent: RunningAgent, models: Path) -> None:
    done = threading.Event()

    def ask_on() -> set[str]:
        outcomes: set[str] = set()
        with Client(agent.url) as client:
            for number in count():
                if done.wait(0.02):
                    break
                outcomes.add(client.infer("first", never_kept(number), deadline_ms=20_000).outcome)
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
        assert outcomes.result() == {"completed"}


def test_a_replaced_model_loses_no_request_and_is_not_answered_from_the_cache(
    agent: RunningAgent, models: Path
) -> None:
    done = threading.Event()

    def ask_on(inputs: Inputs, deadline_ms: float) -> list[tuple[str, float]]:
        """How each request ended, and what the answer was to 2; the last was asked in the end."""
        said: list[tuple[str, float]] = []
        with Client(agent.url) as client:
            asks_on = True
            while asks_on:
                asks_on = not done.is_set()
                result = client.infer("m", inputs(), deadline_ms=deadline_ms)
                said.append((result.outcome, float(result["y"][-1])))
        return said

    def always_new() -> dict[str, NDArray[np.float32]]:
        return {"x": np.append(rng.normal(size=2), 2).astype(np.float32)}

    rng = np.random.default_rng(0)
    with ThreadPoolExecutor() as pool, Client(agent.url) as client:
        streams = [pool.submit(ask_on, inputs, 20_000) for inputs in (X.copy, always_new)]
        try:
            eventually(lambda: client.infer("m", X, deadline_ms=20_000)["y"][-1] == 2)
            for version in (2, 3):
                save(times(version), models / f"m/{version}/model.onnx")
                eventually(partial(offers_only, client, "m", str(version)))
                assert client.infer("m", X, deadline_ms=20_000)["y"].tolist() == [
                    -version,
                    0,
                    2 * version,
                ]
            with pytest.raises(ModelNotFound, match="variant '1' is not in model 'm'"):
                client.infer("m", X, variant="1", deadline_ms=20_000)
            eventually(lambda: any('"model replaced"' in line for line in agent.lines))
        finally:
            done.set()
        for stream in streams:
            outcomes, answers = zip(*stream.result(), strict=True)
            assert set(outcomes) == {"completed"}
            assert [answer for answer, _ in groupby(answers)] == [2, 4, 6]


def test_a_variant_that_no_device_can_serve_any_more_holds_up_no_request(
    agent: RunningAgent, models: Path
) -> None:
    """It is still in the repository, and nothing is wrong with its file."""
    with Client(agent.url) as client:
        asked = partial(client.infer, "two", deadline_ms=20_000)
        assert asked(never_kept(0), variant="first").variant == "first"
        openvino.save_model(
            openvino.Core().read_model(models / "two/model.onnx"), models / "two/model.xml"
        )
        yaml = TWO.replace("model.onnx", "model.xml", 1)
        (models / "two/model.yaml").write_text(f"runtimes: [onnxruntime]\n{yaml}")
        eventually(partial(offers_only, client, "two", "second"))
        assert asked(never_kept(1)).variant == "second"
        with pytest.raises(Unavailable, match="no target has model 'two' variant 'first' ready"):
            asked(never_kept(2), variant="first")


def offers_only(client: Client, name: str, variant: str) -> bool:
    """Whether targets offer this variant of a model, and no other."""
    described = {model["name"]: model for model in client.models()["models"]}
    return [v["name"] for v in described[name]["variants"] if v["targets"]] == [variant]


def is_served(client: Client, name: str) -> bool:
    """Whether a target offers it."""
    described = {model["name"]: model for model in client.models()["models"]}
    return name in described and any(v["targets"] for v in described[name]["variants"])
