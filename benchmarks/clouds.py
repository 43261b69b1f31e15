"""Other servers of the Open Inference Protocol, to test a box's cloud targets.

    python -m benchmarks.clouds triton      # or mlserver; prints its addresses, serves until Ctrl-C

Each serves the handwritten digits (`digits`: `image` float32 [N, 1, 8, 8] to `scores` float32 [N,
10]) with ONNX Runtime, over HTTP and gRPC on loopback. Each has its own virtual environment,
because their requirements differ from ours. `make clouds` makes both environments in build/clouds;
`LAXITY_TRITON_PYTHON` and `LAXITY_MLSERVER_PYTHON` name others:

    /usr/bin/python3 -m venv build/clouds/triton
    build/clouds/triton/bin/pip install 'nvidia-pytriton==0.7.0' onnxruntime
    python3 -m venv build/clouds/mlserver
    build/clouds/mlserver/bin/pip install 'mlserver==1.7.1' onnxruntime

Triton's Python backend is built for the libpython of Debian 12 and Ubuntu 22.04; with a Python from
pyenv or uv, its models do not get ready.
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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.ports import free_port
from benchmarks.spawned_agent import MODELS, prefer_all

READY_S = 90.0
END_S = 20.0
ROOT = Path(__file__).parents[1]
PROGRAMS = Path(__file__).parent / "other_clouds"
DIGITS = MODELS / "digits/small.onnx"

Models = Sequence[Mapping[str, Any]]
"""Each has its `name` and either the `path` of an ONNX file or the `latency` of a model that only
takes time: `base_ms`, `per_item_ms`, `jitter`."""


def interpreter(name: str) -> str | None:
    """The Python that has a server installed, or None."""
    made = ROOT / "build/clouds" / name / "bin/python"
    return os.environ.get(f"LAXITY_{name.upper()}_PYTHON") or (str(made) if made.exists() else None)


class OtherCloud:
    """A server in its own process, on ports that stay the same when it is restarted.

    Args:
        name: One of `COMMANDS`.
        folder: The folder for its files and log.
        models: The models that it serves.
        niceness: The niceness of its processes.
        pair: Certificate and key of its gRPC port; only Triton takes them.

    Raises:
        RuntimeError: No interpreter has the server installed.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        models: Models,
        niceness: int = 0,
        pair: tuple[Path, Path] | None = None,
    ) -> None:
        python = interpreter(name)
        if python is None:
            raise RuntimeError(f"there is no Python that has {name}: run `make clouds`")
        self.name = name
        self._folder = folder
        self._models = [model["name"] for model in models]
        self._niceness = niceness
        self._ports = free_port(), free_port()
        (folder / "models.json").write_text(json.dumps(models))
        self._command = COMMANDS[name](folder, python, *self._ports, *map(str, pair or ()))
        self._process: subprocess.Popen[bytes] | None = None
        self._family: list[psutil.Process] = []

    @property
    def http(self) -> str:
        """HOST:PORT of its HTTP door."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def grpc(self) -> str:
        """HOST:PORT of its gRPC door."""
        return f"127.0.0.1:{self._ports[1]}"

    def start(self) -> None:
        """Start it, and return when its models are ready.

        Raises:
            RuntimeError: The models did not get ready.
        """
        log = self._folder / "cloud.log"
        with log.open("w") as output:
            self._process = subprocess.Popen(
                self._command,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(PROGRAMS)},
                start_new_session=True,
            )
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s and self._process.poll() is None:
            if all(self._is_ready(name) for name in self._models):
                prefer_all(self._process.pid, self._niceness)
                return
            time.sleep(0.2)
        self.kill()
        raise RuntimeError(f"the server did not get ready:\n{log.read_text()[-2000:]}")

    def _is_ready(self, model: str) -> bool:
        url = f"http://{self.http}/v2/models/{model}/ready"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        """Kill it and all processes it has started."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            # pytriton's server has its own session.
            self._family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        self._process.wait()
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self._family, END_S)

    def stop(self) -> None:
        """Ask it to end, and kill it if it does not."""
        if self._process is not None:
            self._family = psutil.Process(self._process.pid).children(recursive=True)
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        self.kill()


def triton_command(_: Path, python: str, http: int, grpc: int, *pair: str) -> list[str]:
    """The command that starts Triton, through nvidia-pytriton."""
    program = str(PROGRAMS / "triton_server.py")
    return [python, program, "models.json", str(http), str(grpc), *pair]


def mlserver_command(folder: Path, python: str, http: int, grpc: int) -> list[str]:
    """The command that starts MLServer."""
    ports = {"http_port": http, "grpc_port": grpc, "metrics_port": free_port()}
    settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **ports}
    (folder / "settings.json").write_text(json.dumps(settings))
    describe = [python, "-c", _DESCRIBE]
    done = subprocess.run(
        describe,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROGRAMS)},
        check=True,
        stdout=subprocess.PIPE,
    )
    for said in json.loads(done.stdout):
        (folder / said["name"]).mkdir(exist_ok=True)
        (folder / said["name"] / "model-settings.json").write_text(json.dumps(said))
    return [str(Path(python).parent / "mlserver"), "start", str(folder)]


_DESCRIBE = """
import json
from pathlib import Path
from mlserver_runtime import settings_of
print(json.dumps([settings_of(spec) for spec in json.loads(Path("models.json").read_text())]))
"""

COMMANDS: dict[str, Callable[..., list[str]]] = {
    "triton": triton_command,
    "mlserver": mlserver_command,
}


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description="another server, to test cloud targets")
    parser.add_argument("name", choices=COMMANDS)
    name = parser.parse_args().name
    with tempfile.TemporaryDirectory(prefix="laxity-cloud-") as folder:
        cloud = OtherCloud(name, Path(folder), [{"name": "digits", "path": str(DIGITS)}])
        try:
            cloud.start()
            print(f"{name}: HTTP at {cloud.http}, gRPC at {cloud.grpc}", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
        finally:
            cloud.stop()


if __name__ == "__main__":
    main()
