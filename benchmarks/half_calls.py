"""HTTP/2 calls whose message never ends, from a peer that obeys flow control."""

from __future__ import annotations

import contextlib
import socket
import struct

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW_SIZE = 4
_FRAME_BYTES = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """An HPACK header with a literal name, without indexing (RFC 7541, section 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class HalfCalls:
    """One connection.

    Attributes:
        sent: Message bytes that the server has allowed and that were sent.
        ended: The calls that the server has ended.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0))
        self._window, self._initial = 65_535, 65_535
        self._windows: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._next = 1
        self._rest = b""
        self.sent = 0
        self.ended: set[int] = set()

    def call(self, path: str, size: int, **headers: str) -> None:
        """Begin a call whose announced message is one byte longer than what will be sent."""
        pseudo = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "test"}
        more = {"content-type": "application/grpc", "te": "trailers", **headers}
        block = b"".join(_literal(name, value) for name, value in {**pseudo, **more}.items())
        self._socket.sendall(
            _frame(_HEADERS, _END_HEADERS, self._next, block)
            + _frame(_DATA, 0, self._next, struct.pack(">BI", 0, size + 1))
        )
        self._windows[self._next] = self._initial - 5
        self._window -= 5
        self._left[self._next] = size
        self._next += 2

    def pump(self, quiet_s: float) -> None:
        """Send what flow control allows, until the server has been quiet for a while."""
        self._socket.settimeout(quiet_s)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while True:
                self._send()
                data = self._socket.recv(65536)
                if not data:
                    return
                self._take(data)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _send(self) -> None:
        for stream, left in self._left.items():
            while (count := min(left, self._window, self._windows[stream], _FRAME_BYTES)) > 0:
                self._socket.sendall(_frame(_DATA, 0, stream, bytes(count)))
                left -= count
                self._window -= count
                self._windows[stream] -= count
                self.sent += count
            self._left[stream] = left

    def _take(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= 9:
            size = int.from_bytes(self._rest[:3], "big")
            if len(self._rest) < 9 + size:
                return
            kind, flags, stream = struct.unpack(">BBI", self._rest[3:9])
            payload, self._rest = self._rest[9 : 9 + size], self._rest[9 + size :]
            self._take_one(kind, flags, stream, payload)

    def _take_one(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for key, value in struct.iter_unpack(">HI", payload):
                if key == _INITIAL_WINDOW_SIZE:
                    for open_stream in self._windows:
                        self._windows[open_stream] += value - self._initial
                    self._initial = value
            self._socket.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE and stream:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == _WINDOW_UPDATE:
            self._window += int.from_bytes(payload, "big")
        elif kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM):
            self._left.pop(stream, None)
            self.ended.add(stream)
