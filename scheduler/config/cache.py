"""The configuration of the result cache."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainSerializer

from scheduler.config.types import Count, Positive, Seconds, Section, Unquoted

_FORMS = "memory://, redis://HOST:PORT/DB, rediss://HOST:PORT/DB or unix:///PATH"


def without_secrets(url: str) -> str:
    """A URL as logs and answers may show it: without password and options."""
    if "://" not in url:
        return url.partition("?")[0].rpartition("@")[2]
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


IN_CLUSTER = "it is a node of a Redis Cluster, and keeps only the answers of its own slots"


_NO_PASSWORD = ("HELLO must be called", "Authentication required")
"""What Redis says to who has none: to redis-py 8, which says HELLO first, and to older ones."""


def why_away(error: Exception) -> str:
    """Why a Redis can't be used: its own words, unless they are about a command nobody typed."""
    if str(error).startswith(_NO_PASSWORD):
        return "it requires a password, and the url has none (redis://:PASSWORD@HOST:PORT/DB)"
    return str(error) or type(error).__name__


_Shown = PlainSerializer(without_secrets, when_used="json-unless-none")
_Password = Field(repr=False)


def _redis_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # the error's text may contain part of the password
        told = "its host or port is invalid (a / in a password is written as %2F)"
        raise ValueError(f"should be {_FORMS}; {told}") from None
    named = parts.path if parts.scheme == "unix" else parts.hostname
    if parts.scheme not in ("redis", "rediss", "unix") or not named:
        raise ValueError(f"{without_secrets(url)!r} should be {_FORMS}")
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdecimal():
        told = f"{database!r} is no number of a database"  # redis-py would take database 0
        raise ValueError(f"{without_secrets(url)!r} should be {_FORMS}; {told}")
    return url


def _cache_url(url: str) -> str:
    return url if url == "memory://" else _redis_url(url)


class CacheConfig(Section):
    """The cache of answers to repeated requests; a model.yaml can override it."""

    url: Annotated[str, AfterValidator(_cache_url), _Shown, Unquoted(), _Password] = "memory://"
    """memory:// keeps answers in the scheduler's memory only; redis://, rediss:// or unix:// names
    a Redis that boxes share, with the scheduler's memory in front of it."""

    ttl_s: Seconds = 600.0
    """How long an answer is kept, in seconds."""

    max_mb: Count = 256
    """Answers in the scheduler's memory, in 10^6 bytes; the least recently used are evicted."""

    max_value_kb: Count = 1024
    """The largest answer that is cached, in 10^3 bytes."""

    max_input_kb: Count = 4096
    """The largest input that is looked up, in 10^3 bytes; hashing 1000 KB takes about 0.12 ms."""

    timeout_ms: Positive = 100.0
    """How long without a reply until a Redis counts as unavailable, in milliseconds. A request
    never waits for it longer than a quarter of its slack."""

    central_url: Annotated[
        Annotated[str, AfterValidator(_redis_url), _Shown] | None, Unquoted(), _Password
    ] = None
    """A second Redis, to which every new answer is also written in the background."""

    central_mb: Count = 64
    """The most answers that wait to be written to it, in 10^6 bytes; the oldest are dropped."""
