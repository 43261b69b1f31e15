"""The answers in a Redis that boxes share, and who of them is working on which."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from redis.exceptions import ResponseError

from scheduler.daemon.cache.entries import FORMAT
from scheduler.daemon.cache.redis_link import RedisLink, RedisListener, Replies

_PREFIX = b"laxity:%d:" % FORMAT
_CLAIM = b"claim:"
_LONGEST_CLAIM_MS = 10_000
_ENDLESS = -1


@dataclass(frozen=True, slots=True)
class Found:
    """What Redis has under a key.

    Attributes:
        value: The bytes, which may be anything; None where there are none.
        ttl_ms: How long it stays there; None where it stays.
        claimed: Whether the claim on the key is this box's by now; None where Redis would not say.
        claim_ms: How long it lasts; None where it has no end.
    """

    value: bytes | None
    ttl_ms: int | None
    claimed: bool | None = None
    claim_ms: int | None = None


OnFound = Callable[["Found | None"], None]
"""Called exactly once; with None where Redis did not answer."""


def redis_key(model: str, key: bytes) -> bytes:
    """Where an answer lies: legible, so that people can look at, and remove, those of a model."""
    return b"%s%s:%s" % (_PREFIX, model.encode(), key.hex().encode())


class SharedListener(RedisListener, Protocol):
    """Hears of answers and claims, by key."""

    def on_released(self, keys: Iterable[bytes]) -> None:
        """Claims were given back, or have ended."""


class SharedTier:
    """Answers, and claims to be the one box that works on a question.

    Args:
        url: As redis-py takes it.
        timeout_s: After how long without an answer it counts as away.
        listener: Hears when it comes and goes, and which answers and claims have changed.

    Attributes:
        link: The connection.
        refused: How many answers Redis did not take: full, away, or too slow.
    """

    def __init__(self, url: str, timeout_s: float, listener: SharedListener) -> None:
        """Not connected yet; see `RedisLink.keep_connected`."""
        self.link = RedisLink(url, timeout_s, self)
        self.refused = 0
        self._listener = listener
        self._me = f"{os.uname().nodename} {os.getpid()} {secrets.token_hex(4)}"

    def look_up(self, model: str, key: bytes, most_bytes: int, on_found: OnFound) -> None:
        """Reads what is under a key, no more of it than an answer may have."""
        name = redis_key(model, key)

        def read(replies: Replies | None) -> None:
            on_found(None if replies is None else _found(replies))

        self.link.send(_read(name, most_bytes), read)

    def claim(
        self, model: str, key: bytes, most_bytes: int, for_ms: int, on_found: OnFound
    ) -> None:
        """Claims a question, and reads again what may have come since."""
        name = redis_key(model, key)
        lease_ms = max(1, min(for_ms, _LONGEST_CLAIM_MS))

        def read(replies: Replies | None) -> None:
            if replies is None:
                on_found(None)
                return
            found = _found(replies[2:])
            refused = isinstance(replies[0], ResponseError)
            claimed = None if refused else replies[0] is not None
            claim_ms = replies[1] if isinstance(replies[1], int) else 0
            lasts_ms = None if claim_ms == _ENDLESS else max(0, claim_ms)
            on_found(Found(found.value, found.ttl_ms, claimed, lasts_ms))

        claim = _CLAIM + name
        take = ("SET", claim, self._me, "NX", "PX", lease_ms)
        # Redis tells of what becomes of a claim because it was read.
        self.link.send([take, ("PTTL", claim), *_read(name, most_bytes)], read)

    def release(self, model: str, key: bytes) -> None:
        """Gives a claim of this box back, where there will be no answer."""
        self.link.send([("DEL", _CLAIM + redis_key(model, key))], _ignore)

    def store(self, model: str, key: bytes, value: bytes, ttl_ms: int, claimed: bool) -> None:
        """Writes an answer, where the link has room, and gives the claim back."""
        name = redis_key(model, key)
        commands: list[tuple[Any, ...]] = []
        if self.link.has_room():
            commands.append(("SET", name, value, "PX", ttl_ms))
            if self.link.tracks:
                # Redis tells of changes to keys that were read, so it is read, at no great cost.
                commands.append(("EXISTS", name))
        else:
            self.refused += 1
        if claimed:
            commands.append(("DEL", _CLAIM + name))
        if commands:
            self.link.send(commands, self._on_stored)

    def _on_stored(self, replies: Replies | None) -> None:
        self.refused += replies is not None and isinstance(replies[0], ResponseError)

    # -- what the link tells

    def on_open(self) -> None:
        """It has come, or come back."""
        self._listener.on_open()

    def on_lost(self) -> None:
        """It is away."""
        self._listener.on_lost()

    def on_changed(self, names: Iterable[bytes] | None) -> None:
        """Names of Redis have changed."""
        if names is None:
            self._listener.on_changed(None)
            return
        names = list(names)
        self._listener.on_changed(_keys_of(names, b""))
        self._listener.on_released(_keys_of(names, _CLAIM))


def _read(name: bytes, most_bytes: int) -> list[tuple[Any, ...]]:
    """One byte more than may be, to notice that there is more."""
    return [("GETRANGE", name, 0, most_bytes), ("PTTL", name)]


def _found(replies: Replies) -> Found:
    value, ttl_ms = replies
    if not isinstance(value, bytes):  # an error: it is no string
        value = b"not a string"
    ends = isinstance(ttl_ms, int) and ttl_ms >= 0
    return Found(value or None, ttl_ms if ends else None)


def _keys_of(names: Iterable[bytes], before: bytes) -> list[bytes]:
    """The keys in those names that have our prefix, behind something else."""
    found = []
    for name in names:
        if name.startswith(before + _PREFIX):
            with suppress(ValueError):
                found.append(bytes.fromhex(name.rpartition(b":")[2].decode()))
    return found


def _ignore(_: Replies | None) -> None:
    pass
