"""Other people's servers of the Open Inference Protocol, to try a box's cloud targets on.

    python -m benchmarks.clouds triton      # or mlserver; says where, and serves until Ctrl-C

Each serves the handwritten digits (`digits`: `image` float32 [N, 1, 8, 8] to `scores` float32
[N, 10]) by ONNX Runtime, over HTTP and gRPC on loopback, from a virtual environment of its own,
because their requirements are not ours. `LAXITY_TRITON_PYTHON` and `LAXITY_MLSERVER_PYTHON` name
the interpreters of those environments:

    /usr/bin/python3 -m venv /tmp/triton && /tmp/triton/bin/pip install nvidia-pytriton onnxruntime
    python3 -m venv /tmp/mlserver && /tmp/mlserver/bin/pip install mlserver onnxruntime

Both have run so: nvidia-pytriton 0.7.0 with Debian 12's Python 3.11, MLServer 1.7.1. MLServer knows
no binary data over HTTP and answers it with 422; it takes JSON, and raw contents over gRPC.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from benchmarks.doors import free_port

READY_S = 90.0
END_S = 20.0
MODEL = Path(str(resources.files("configs"))) / "models/digits/small.onnx"

TRITON = """
import sys
import numpy as np
import onnxruntime
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig
path, http, grpc = sys.argv[1:]
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
@batch
def infer(image):
    return session.run(["scores"], {"image": image})
where = dict(http_address="127.0.0.1", grpc_address="127.0.0.1", allow_metrics=False)
config = TritonConfig(http_port=int(http), grpc_port=int(grpc), **where)
with Triton(config=config) as triton:
    triton.bind(
        model_name="digits",
        infer_func=infer,
        inputs=[Tensor(name="image", dtype=np.float32, shape=(1, 8, 8))],
        outputs=[Tensor(name="scores", dtype=np.float32, shape=(10,))],
        config=ModelConfig(max_batch_size=32),
    )
    triton.serve()
"""
MLSERVER = """
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse
class Digits(MLModel):
    async def load(self):
        path = self.settings.parameters.uri
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return True
    async def predict(self, payload):
        image = NumpyCodec.decode_input(payload.inputs[0])
        (scores,) = self.session.run(["scores"], {"image": image})
        outputs = [NumpyCodec.encode_output("scores", scores)]
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=outputs)
"""


@dataclass(frozen=True)
class Cloud:
    """A server that runs.

    Attributes:
        name: One of `COMMANDS`.
        http: HOST:PORT of the protocol over HTTP.
        grpc: The same over gRPC.
    """

    name: str
    http: str
    grpc: str


def interpreter(name: str) -> str | None:
    """The Python that has a server, as the environment names it; None where it does not."""
    return os.environ.get(f"LAXITY_{name.upper()}_PYTHON")


def triton_command(folder: Path, python: str, http: int, grpc: int) -> list[str]:
    """What starts Triton, by nvidia-pytriton."""
    (folder / "serve.py").write_text(TRITON)
    return [python, str(folder / "serve.py"), str(MODEL), str(http), str(grpc)]


def mlserver_command(folder: Path, python: str, http: int, grpc: int) -> list[str]:
    """What starts MLServer."""
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": free_port()}
    settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **ports}
    digits = {
        "name": "digits",
        "implementation": "digits.Digits",
        "inputs": [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
        "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}],
    }
    (folder / "digits.py").write_text(MLSERVER)
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(
        json.dumps({**digits, "parameters": {"uri": str(MODEL)}})
    )
    return [str(Path(python).parent / "mlserver"), "start", str(folder)]


COMMANDS: dict[str, Callable[[Path, str, int, int], list[str]]] = {
    "triton": triton_command,
    "mlserver": mlserver_command,
}


@contextlib.contextmanager
def running_cloud(name: str, folder: Path) -> Iterator[Cloud]:
    """A server, from when it is ready.

    Args:
        name: One of `COMMANDS`.
        folder: For its files and log.

    Raises:
        RuntimeError: The environment names no interpreter for it, or it did not get ready.
    """
    python = interpreter(name)
    if python is None:
        raise RuntimeError(f"LAXITY_{name.upper()}_PYTHON names no Python that has {name}")
    http, grpc = free_port(), free_port()
    log = folder / "cloud.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            COMMANDS[name](folder, python, http, grpc),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            start_new_session=True,
        )
    try:
        _wait_ready(f"http://127.0.0.1:{http}/v2/models/digits/ready", process, log)
        yield Cloud(name, f"127.0.0.1:{http}", f"127.0.0.1:{grpc}")
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the server did not get ready:\n{log.read_text()[-2000:]}")


def main() -> None:
    """Serves until it is told to stop."""
    parser = argparse.ArgumentParser(description="another server to try cloud targets on")
    parser.add_argument("name", choices=COMMANDS)
    name = parser.parse_args().name
    with (
        tempfile.TemporaryDirectory(prefix="laxity-cloud-") as folder,
        running_cloud(name, Path(folder)) as cloud,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"{name}: HTTP at {cloud.http}, gRPC at {cloud.grpc}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
