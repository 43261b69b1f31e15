"""A real server of the native protocol on a unix socket, which does what a test tells it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from scheduler import wire
from tests.waiting import PATIENCE_S

IMAGE = {"name": "image", "dtype": "float32", "shape": [None]}
A, B = ({"name": name, "dtype": "float32", "shape": [1]} for name in "ab")
MODELS = {
    "models": [
        {"name": "digits", "inputs": [IMAGE], "outputs": [IMAGE]},
        {"name": "pair", "inputs": [A, B], "outputs": []},
    ]
}


class Peer(asyncio.BufferedProtocol):
    """The server's end of one connection."""

    def __init__(self, box: FakeBox) -> None:
        self.box = box
        self.held: list[bytes] | None = None
        self.reader = wire.FrameReader(wire.FrameLimits())

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.box.peers.append(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.reader.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for header, body in self.reader.advance(nbytes):
            header["tensors"] = wire.unpack_tensors(header.get("in", []), body)
            self.box.take(self, header)

    def connection_lost(self, exc: Exception | None) -> None:
        self.box.note(self, {"t": "lost"})

    def send(self, header: wire.Header, tensors: wire.Tensors | None = None) -> None:
        """Writes a message; from any thread."""
        specs, buffers = wire.pack_tensors(tensors or {})
        if tensors is not None:
            header["out"] = specs
        self.send_raw(b"".join(wire.encode(header, buffers)))

    def send_raw(self, data: bytes) -> None:
        """Writes what may be no message; from any thread, on the server's own at once."""
        if self.held is not None:
            self.held.append(data)
        elif threading.current_thread() is self.box.thread:
            self.transport.write(data)
        else:
            self.box.loop.call_soon_threadsafe(self.transport.write, data)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """What is sent meanwhile, on the server's thread, reaches the client in one piece."""
        self.held = []
        yield
        held, self.held = self.held, None
        self.send_raw(b"".join(held))

    def answer(self, header: wire.Header, **more: Any) -> None:
        """Echoes an infer's tensors."""
        message = {
            "t": "result",
            "id": header["id"],
            "outcome": "completed",
            "target": "cpu:0",
            "variant": header.get("variant", "fp32"),
            "runtime": "echo",
            "batch": 1,
            "timing": [1, 2, 3, 6],
            **more,
        }
        self.send(message, header["tensors"])

    def refuse(self, header: wire.Header, code: str, message: str = "no", **detail: Any) -> None:
        """Answers with an error."""
        self.send(
            {"t": "error", "id": header["id"], "code": code, "message": message, "detail": detail}
        )

    def drop(self) -> None:
        """Loses the connection; from any thread."""
        self.box.loop.call_soon_threadsafe(self.transport.abort)


Behaviour = Callable[[Peer, wire.Header], None]


class FakeBox:
    """Listens at `path` from `start` to `stop`; `on_infer`, `on_hello` … are its behaviour."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"unix://{path}"
        self.on_infer: Behaviour = Peer.answer
        self.on_hello: Behaviour = welcome
        self.on_task: Behaviour = ignore
        self.models: dict[str, Any] = MODELS
        self.status: dict[str, Any] = {"site": "test"}
        self.peers: list[Peer] = []
        self.seen: list[tuple[Peer, wire.Header]] = []
        self.changed = threading.Condition()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def start(self) -> FakeBox:
        """Listens."""
        self.server = self.run(self.loop.create_unix_server(lambda: Peer(self), str(self.path)))
        return self

    @contextlib.contextmanager
    def on_tcp(self) -> Iterator[str]:
        """Listens at a port, too; its URL."""
        made = self.loop.create_server(lambda: Peer(self), "127.0.0.1", 0)
        server: asyncio.Server = self.run(made)
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.loop.call_soon_threadsafe(server.close)

    def stop(self) -> None:
        """Stops listening and drops everyone."""

        async def stop() -> None:
            self.server.close()
            for peer in self.peers:
                peer.transport.abort()

        self.run(stop())
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the server's thread."""
        with contextlib.suppress(AttributeError):
            self.stop()
        self.run(asyncio.sleep(0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run(self, coroutine: Any) -> Any:
        """Runs a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def take(self, peer: Peer, header: wire.Header) -> None:
        """Answers a message and notes it; nobody sees the one without the other."""
        with self.changed:
            self.note(peer, header)
            match header["t"]:
                case "hello":
                    self.on_hello(peer, header)
                case "infer":
                    self.on_infer(peer, header)
                case (
                    "task" | "task_result" | "task_status" | "task_cancel" | "task_forget" | "tasks"
                ):
                    self.on_task(peer, header)
                case "models":
                    peer.send({"t": "reply", "id": header["id"], "value": self.models})
                case "status":
                    peer.send({"t": "reply", "id": header["id"], "value": self.status})

    def note(self, peer: Peer, header: wire.Header) -> None:
        """Remembers what came and wakes who waits for it."""
        with self.changed:
            self.seen.append((peer, header))
            self.changed.notify_all()

    def messages(self, kind: str) -> list[tuple[Peer, wire.Header]]:
        """What came of one type, with the connection it came on."""
        with self.changed:
            return [entry for entry in self.seen if entry[1]["t"] == kind]

    def wait(self, kind: str, count: int = 1) -> list[tuple[Peer, wire.Header]]:
        """The first `count` messages of a type, once they are there."""
        with self.changed:
            came = self.changed.wait_for(
                lambda: sum(header["t"] == kind for _, header in self.seen) >= count, PATIENCE_S
            )
        assert came, f"{count} x {kind} did not come: {self.seen}"
        return self.messages(kind)[:count]


def welcome(peer: Peer, _header: wire.Header) -> None:
    """Greets."""
    limits = {"header_bytes": 65536, "body_bytes": 1_000_000}
    peer.send({"t": "welcome", "v": wire.VERSION, "site": "test", "limits": limits})


def ignore(_peer: Peer, _header: wire.Header) -> None:
    """Never answers."""


def image(*values: float) -> wire.Tensors:
    """The inputs of `digits`."""
    return {"image": np.array(values, np.float32)}
