"""A model of text at every door of a real agent, beside what `laxity infer` makes of a file."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype

from scheduler import Client, InvalidInput
from tests.e2e.running_agent import RunningAgent

TEXT = np.array(["eins", "größer", "", "zwei"], object)
CODES = [1, 0, 0, 2]


@pytest.fixture
def client(shared_agent: RunningAgent) -> Client:
    return Client(shared_agent.url)


@pytest.mark.parametrize("kind", [object, "U", "S"])
def test_python_asks_with_any_array_of_text(client: Client, kind: str) -> None:
    texts = [text.encode() for text in TEXT] if kind == "S" else TEXT
    with client:
        result = client.infer("words", {"text": np.array(texts, kind)}, deadline_ms=5000)
    assert [text.decode() for text in result["same"].tolist()] == TEXT.tolist()
    assert result["code"].tolist() == CODES


def test_texts_of_all_lengths_share_batches(client: Client) -> None:
    frames = [{"text": np.array(["x" * length])} for length in range(1, 200)]
    with client:
        results = list(client.map("words", frames, deadline_ms=20_000))
    assert [len(result["same"].item()) for result in results] == list(range(1, 200))
    assert max(result.batch for result in results) > 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array([b"\xff"]), "no UTF-8"),
        (np.array([b"a\0"], object), "ends with a zero"),
        (np.array([1.0]), "is string, not float64"),
    ],
)
def test_what_is_no_text_is_refused(client: Client, value: NDArray[Any], message: str) -> None:
    with client, pytest.raises(InvalidInput, match=message):
        client.infer("words", {"text": value}, deadline_ms=5000)


@pytest.mark.parametrize("binary", [True, False])
def test_over_http_text_is_bytes(shared_agent: RunningAgent, binary: bool) -> None:
    asked = triton_http.InferInput("text", [2, 2], np_to_triton_dtype(TEXT.dtype))
    asked.set_data_from_numpy(TEXT.reshape(2, 2), binary_data=binary)
    wanted = [triton_http.InferRequestedOutput(n, binary_data=binary) for n in ("same", "code")]
    with triton_http.InferenceServerClient(shared_agent.address("http")) as server:
        said = server.get_model_metadata("words")
        config = server.get_model_config("words")
        answer = server.infer("words", [asked], outputs=wanted)
    assert said["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1, -1]}]
    assert config["input"][0]["data_type"] == "TYPE_STRING"
    same = [t if isinstance(t, str) else t.decode() for t in answer.as_numpy("same").ravel()]
    assert same == TEXT.tolist()
    assert answer.as_numpy("code").ravel().tolist() == CODES


def test_a_raw_request_is_one_text(shared_agent: RunningAgent) -> None:
    def asked(body: bytes) -> tuple[int, bytes]:
        connection = HTTPConnection(shared_agent.address("http"), timeout=30)
        with closing(connection):
            headers = {"Inference-Header-Content-Length": "0"}
            connection.request("POST", "/v2/models/words/infer", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()

    status, said = asked("größer".encode())
    assert status == 200
    assert "größer".encode() in said
    status, said = asked(b"\xff")
    assert status == 400
    assert b"no UTF-8" in said


def test_over_grpc_text_is_bytes(shared_agent: RunningAgent) -> None:
    asked = triton_grpc.InferInput("text", [1, 4], "BYTES")
    asked.set_data_from_numpy(TEXT.reshape(1, 4))
    with triton_grpc.InferenceServerClient(shared_agent.address("grpc")) as server:
        answer = server.infer("words", [asked])
    assert [text.decode() for text in answer.as_numpy("same").ravel()] == TEXT.tolist()
    assert answer.as_numpy("code").ravel().tolist() == CODES


def test_infer_takes_a_file_of_lines(shared_agent: RunningAgent, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(TEXT), "utf-8")
    command = [sys.executable, "-m", "scheduler.cli", "infer", "words", "--input", str(file)]
    asked = [*command, "--url", shared_agent.url, "--deadline-ms", "5000"]
    said = json.loads(subprocess.check_output([*asked, "--json"], text=True))
    assert said["outputs"]["same"]["values"] == TEXT.tolist()
    assert said["outputs"]["same"]["dtype"] == "string"
    assert said["outputs"]["code"]["values"] == CODES
    assert "größer" in subprocess.check_output(asked, text=True)
