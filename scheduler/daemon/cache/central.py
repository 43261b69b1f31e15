"""Writing answers through to a second Redis, which may be far away or absent for days."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from redis.exceptions import ResponseError

from scheduler.daemon.cache.redis_link import RedisLink, Replies
from scheduler.daemon.cache.shared import redis_key

_AT_ONCE = 32
_BYTES_AT_ONCE = 256_000
"""Unless a single answer has more: what is on its way must get through within `_TIMEOUT_S`."""

_TIMEOUT_S = 5.0
"""Nobody waits for it, so that a slow way is no reason to hang up."""


class CentralCopy:
    """Answers on their way to a central Redis; when too many wait, the oldest are dropped.

    Args:
        url: As redis-py takes it.
        most_bytes: What may wait.

    Attributes:
        link: The connection.
        written: How many have arrived.
        dropped: How many gave way, or were refused.
        waiting_bytes: What waits.
    """

    def __init__(self, url: str, most_bytes: int) -> None:
        """Nothing waits."""
        self.link = RedisLink(url, _TIMEOUT_S, self)
        self.written = self.dropped = self.waiting_bytes = 0
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[bytes, bytes, int]] = deque()  # name, value, until when
        self._sending = False

    def put(self, model: str, key: bytes, value: bytes, ttl_ms: int) -> None:
        """Adds an answer."""
        until_ns = time.monotonic_ns() + ttl_ms * 1_000_000
        self._waiting.append((redis_key(model, key), value, until_ns))
        self.waiting_bytes += len(value)
        while self.waiting_bytes > self._most_bytes:
            self._take()
            self.dropped += 1
        self._send()

    def on_open(self) -> None:
        """What waited can go."""
        self._send()

    def on_lost(self) -> None:
        """What was on its way waits again already."""

    def on_changed(self, names: Iterable[bytes] | None) -> None:
        """Nothing is read there, so that no change matters."""

    def _take(self) -> tuple[bytes, bytes, int]:
        taken = self._waiting.popleft()
        self.waiting_bytes -= len(taken[1])
        return taken

    def _next(self, now_ns: int) -> list[tuple[bytes, bytes, int]]:
        """Some of what waits, without what is too old by now."""
        some: list[tuple[bytes, bytes, int]] = []
        size = 0
        while self._waiting and len(some) < _AT_ONCE:
            _, value, until_ns = self._waiting[0]
            if until_ns - now_ns < 1_000_000:
                self._take()
                self.dropped += 1
                continue
            size += len(value)
            if some and size > _BYTES_AT_ONCE:
                break
            some.append(self._take())
        return some

    def _send(self) -> None:
        if self._sending or not self.link.open:
            return
        now_ns = time.monotonic_ns()
        some = self._next(now_ns)
        if not some:
            return
        commands = [
            ("SET", name, value, "PX", (until_ns - now_ns) // 1_000_000)
            for name, value, until_ns in some
        ]

        def sent(replies: Replies | None) -> None:
            self._sending = False
            if replies is None:  # lost on the way: they are the first of the next connection
                self._waiting.extendleft(reversed(some))
                self.waiting_bytes += sum(len(value) for _, value, _ in some)
                return
            refused = sum(isinstance(reply, ResponseError) for reply in replies)
            self.dropped += refused
            self.written += len(replies) - refused
            self._send()

        self._sending = True
        self.link.send(commands, sent)

    def status(self) -> dict[str, Any]:
        """How it is, and what has arrived."""
        return {
            **self.link.status(),
            "written": self.written,
            "dropped": self.dropped,
            "waiting_bytes": self.waiting_bytes,
        }
