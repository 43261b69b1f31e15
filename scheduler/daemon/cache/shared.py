"""The answers in a Redis that boxes share, and the claims of boxes that are computing one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from redis.exceptions import AskError, ResponseError

from scheduler.config.cache import IN_CLUSTER
from scheduler.daemon.cache.entries import FORMAT
from scheduler.daemon.cache.redis_link import RedisLink, Replies

_PREFIX = b"laxity:%d:" % FORMAT
_CLAIM = b"claim:"
_LONGEST_CLAIM_MS = 10_000
_ENDLESS = -1


@dataclass(frozen=True, slots=True)
class Found:
    """What Redis has under a key.

    Attributes:
        value: The bytes, which may be anything; None if there are none.
        ttl_ms: Remaining time to live of the value; None if it does not expire.
        claimed: Whether this box got the claim on the key; None if Redis refused to say.
        claim_ms: Remaining time of the claim; None if it does not expire.
    """

    value: bytes | None
    ttl_ms: int | None
    claimed: bool | None = None
    claim_ms: int | None = None


OnFound = Callable[["Found | None"], None]
"""Called exactly once; with None if Redis did not answer."""


def redis_key(model: str, key: bytes) -> bytes:
    """The Redis key of an answer; readable, so that people can list and remove a model's."""
    return b"%s%s:%s" % (_PREFIX, model.encode(), key.hex().encode())


class SharedListener(Protocol):
    """Receives changes of answers and claims, by key."""

    def on_lost(self) -> None:
        """No more changes are told of; every `OnFound` has been called."""

    def on_changed(self, keys: Iterable[bytes] | None) -> None:
        """Others have written or removed these answers; None means possibly all of them."""

    def on_released(self, keys: Iterable[bytes]) -> None:
        """Claims were given back, or have expired."""


class SharedTier:
    """Shared answers, and claims by which one box reserves the computation of an answer.

    Args:
        url: The Redis, as redis-py takes it.
        timeout_s: How long a reply may take before Redis counts as lost.
        listener: Receives changes of answers and claims.

    Attributes:
        link: The connection.
        refused: Number of answers not stored because Redis refused them or was too slow.
        refusal: What Redis said to the last write; empty if it accepted it.
    """

    def __init__(self, url: str, timeout_s: float, listener: SharedListener) -> None:
        """Not connected yet; see `RedisLink.keep_connected`."""
        self.link = RedisLink(url, timeout_s, self)
        self.refused = 0
        self.refusal = ""
        self._listener = listener
        self._me = f"{os.uname().nodename} {os.getpid()} {secrets.token_hex(4)}"

    def look_up(self, model: str, key: bytes, most_bytes: int, on_found: OnFound) -> None:
        """Reads the value under a key, up to the largest size of an answer."""
        name = redis_key(model, key)

        def read(replies: Replies | None) -> None:
            on_found(None if replies is None else _found(replies))

        self.link.send(_read(name, most_bytes), read)

    def claim(
        self, model: str, key: bytes, most_bytes: int, for_ms: int, on_found: OnFound
    ) -> None:
        """Claims a key, and reads its value again in case it has been written since."""
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
        # PTTL reads the claim, so Redis will notify of changes to it.
        self.link.send([take, ("PTTL", claim), *_read(name, most_bytes)], read)

    def release(self, model: str, key: bytes) -> None:
        """Gives a claim of this box back when there will be no answer."""
        self.link.send([("DEL", _CLAIM + redis_key(model, key))], _ignore)

    def store(self, model: str, key: bytes, value: bytes, ttl_ms: int, claimed: bool) -> None:
        """Writes an answer, if the link has room, and gives the claim back."""
        if not self.link.has_room():
            self.refused += 1
            if claimed:
                self.release(model, key)
            return
        name = redis_key(model, key)
        commands: list[tuple[Any, ...]] = [("SET", name, value, "PX", ttl_ms)]
        if self.link.tracks:
            # Redis notifies only of changes to keys that were read; this read is cheap.
            commands.append(("EXISTS", name))
        if claimed:
            commands.append(("DEL", _CLAIM + name))
        self.link.send(commands, self._on_stored)

    def _on_stored(self, replies: Replies | None) -> None:
        if replies is None:
            return
        refused = isinstance(replies[0], ResponseError)
        self.refused += refused
        self.refusal = _said(replies[0]) if refused else ""

    # -- events of the link

    def on_open(self) -> None:
        """Nothing to do: answers removed while the link was down leave memory when they expire.

        Clearing the memory instead would cost the box its answers whenever the link is lost, which
        happens first to an overloaded box.
        """

    def on_lost(self) -> None:
        """The link is lost."""
        self._listener.on_lost()

    def on_changed(self, names: Iterable[bytes] | None) -> None:
        """Sorts changed Redis keys into answers and claims."""
        if names is None:
            self._listener.on_changed(None)
            return
        names = list(names)
        self._listener.on_changed(_keys_of(names, b""))
        self._listener.on_released(_keys_of(names, _CLAIM))


def _read(name: bytes, most_bytes: int) -> list[tuple[Any, ...]]:
    """Commands that read a value and its TTL; one byte too many, to notice an oversized value."""
    return [("GETRANGE", name, 0, most_bytes), ("PTTL", name)]


def _said(refusal: ResponseError) -> str:
    """Why an answer was not stored: in Redis' own words, unless they are only an address."""
    return IN_CLUSTER if isinstance(refusal, AskError) else str(refusal)


def _found(replies: Replies) -> Found:
    value, ttl_ms = replies
    if isinstance(value, AskError):  # as is MovedError
        value = b""
    if not isinstance(value, bytes):  # an error: it is no string
        value = b"not a string"
    ends = isinstance(ttl_ms, int) and ttl_ms >= 0
    return Found(value or None, ttl_ms if ends else None)


def _keys_of(names: Iterable[bytes], before: bytes) -> list[bytes]:
    """The cache keys in the names that begin with `before` and our prefix."""
    found = []
    for name in names:
        if name.startswith(before + _PREFIX):
            with suppress(ValueError):
                found.append(bytes.fromhex(name.rpartition(b":")[2].decode()))
    return found


def _ignore(_: Replies | None) -> None:
    pass
