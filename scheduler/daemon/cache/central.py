"""Writes answers through to a second Redis, which may be far away or absent for days."""

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
"""Most bytes per write, unless a single answer is larger: a write must arrive within `_TIMEOUT_S`.
"""

_TRIES = 3
"""How often an answer is sent alone after it was lost."""

_OVERHEAD_BYTES = 300
"""Approximate memory of a waiting answer in addition to its value."""

_TIMEOUT_S = 5.0
"""Generous, because nobody waits for these writes: a slow link is no reason to hang up."""


class CentralCopy:
    """A queue of answers for a central Redis; when it is full, the oldest are dropped.

    Args:
        url: The Redis, as redis-py takes it.
        most_bytes: The most memory that the queue takes.

    Attributes:
        link: The connection.
        written: Number of answers that arrived.
        dropped: Number of answers that were dropped, expired, or refused by Redis.
        waiting_bytes: The memory that the queue takes, approximately.
    """

    def __init__(self, url: str, most_bytes: int) -> None:
        """The queue is empty."""
        self.link = RedisLink(url, _TIMEOUT_S, self)
        self.written = self.dropped = self.waiting_bytes = 0
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[bytes, bytes, int]] = deque()  # name, value, until when
        self._sending = False
        self._losses = 0

    def put(self, model: str, key: bytes, value: bytes, ttl_ms: int) -> None:
        """Adds an answer."""
        until_ns = time.monotonic_ns() + ttl_ms * 1_000_000
        self._waiting.append((redis_key(model, key), value, until_ns))
        self.waiting_bytes += _size(value)
        while self.waiting_bytes > self._most_bytes:
            self._take()
            self.dropped += 1
        self._send()

    def on_open(self) -> None:
        """Sends what is queued."""
        self._send()

    def on_lost(self) -> None:
        """Nothing to do: answers in flight have already been queued again."""

    def on_changed(self, names: Iterable[bytes] | None) -> None:
        """Nothing to do: the central Redis is never read."""

    def _take(self) -> tuple[bytes, bytes, int]:
        taken = self._waiting.popleft()
        self.waiting_bytes -= _size(taken[1])
        return taken

    def _next(self, now_ns: int) -> list[tuple[bytes, bytes, int]]:
        """The next answers to write; expired ones are dropped."""
        some: list[tuple[bytes, bytes, int]] = []
        size = 0
        most = _AT_ONCE if not self._losses else 1
        while self._waiting and len(some) < most:
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
            if replies is None:
                self._lost(some)
                return
            self._losses = 0
            refused = sum(isinstance(reply, ResponseError) for reply in replies)
            self.dropped += refused
            self.written += len(replies) - refused
            self._send()

        self._sending = True
        self.link.send(commands, sent)

    def _lost(self, some: list[tuple[bytes, bytes, int]]) -> None:
        """Queues answers that were lost in flight again, to go first on the next connection.

        One that was lost alone `_TRIES` times is dropped: the way may be too slow for it, and it
        would keep the others waiting.
        """
        self._losses += 1
        if self._losses > _TRIES:
            self._losses = 1
            self.dropped += len(some)
            return
        self._waiting.extendleft(reversed(some))
        self.waiting_bytes += sum(_size(value) for _, value, _ in some)

    def status(self) -> dict[str, Any]:
        """The state of the link and of the queue."""
        return {
            **self.link.status(),
            "written": self.written,
            "dropped": self.dropped,
            "waiting_bytes": self.waiting_bytes,
        }


def _size(value: bytes) -> int:
    return len(value) + _OVERHEAD_BYTES
