"""The servers compared with laxity's doors: the same no-op, written for each of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MOSEC = """
from mosec import Server, Worker
class Noop(Worker):
    def deserialize(self, data): return data
    def forward(self, data): return data[:4]
    def serialize(self, data): return data
server = Server()
server.append_worker(Noop, num=1)
server.run()
"""
LITSERVE = """
import base64
import litserve
class Noop(litserve.LitAPI):
    def setup(self, device): pass
    def decode_request(self, request): return base64.b64decode(request["x"])
    def predict(self, data): return data[:4]
    def encode_response(self, output): return {{"y": base64.b64encode(output).decode()}}
if __name__ == "__main__":
    litserve.LitServer(Noop(), accelerator="cpu").run(port={port}, generate_client_file=False)
"""
RAY_SERVE = """
import time
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response
@serve.deployment(num_replicas=1, max_ongoing_requests=128)
class Noop:
    async def __call__(self, request: Request) -> Response:
        return Response((await request.body())[:4])
ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
serve.start(http_options={{"host": "127.0.0.1", "port": {port}}})
serve.run(Noop.bind(), route_prefix="/")
while True:
    time.sleep(1)
"""


@contextlib.contextmanager
def program(folder: Path, text: str, *arguments: str) -> Iterator[None]:
    """Run another server in its own process group."""
    file = folder / "contender.py"
    file.write_text(text)
    with (folder / "contender.log").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(file), *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=folder,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, 15)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
