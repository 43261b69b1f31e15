"""The closest bound that can be computed in reasonable time, cached on disk.

A user who tries one policy after another on the same workload needs the same bound each time, and
computing it takes longer than everything else. The cache key is a digest of everything that the
bound depends on: the requests, the fleet, and the code that computes it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

import scipy  # type: ignore[import-untyped]

from replay.bound.fluid import fluid_bound
from replay.bound.model import Conditions, ServiceTimes
from replay.bound.whole import whole_bound
from replay.simulator import Arrival
from scheduler.core.requests import RequestClass
from scheduler.core.target_specs import TargetSpec

WHOLE_REQUESTS = 10_000
"""For a longer workload the closer bound takes too long; for this many it takes a minute."""

FILE = "bounds.sqlite"

KEPT = 100_000
"""The number of latest bounds kept in the cache; some 10 MB."""

_PATIENCE_S = 5.0

_UNKEPT = sqlite3.Error, OSError, RuntimeError
"""Reasons why the cache can't be used; `RuntimeError` if the home directory can't be determined."""


def cache_dir() -> Path:
    """The folder for cached results, which can always be computed again.

    `LAXITY_CACHE_DIR` if it is set, else `$XDG_CACHE_HOME/laxity` (`~/.cache/laxity`).

    Source: XDG Base Directory Specification 0.8; a path that isn't absolute is ignored.
    """
    named = os.environ.get("LAXITY_CACHE_DIR")
    if named:
        return Path(named)
    home = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (home if home.is_absolute() else Path.home() / ".cache") / "laxity"


def closest_bound(
    arrivals: Callable[[], Iterable[Arrival]],
    targets: Sequence[TargetSpec],
    conditions: Mapping[str, Conditions],
    times: ServiceTimes,
) -> float:
    """The largest share of the weight that a clairvoyant could finish in time.

    Args:
        arrivals: Returns the requests, from the first one at each call.
        targets: As in `fluid_bound`, like the rest.
        conditions: The conditions of each target.
        times: The true service times.

    Raises:
        ValueError: As in `fluid_bound`.
    """
    asked = _digest(arrivals(), targets, conditions, times)
    with suppress(*_UNKEPT):  # the cache only saves time
        if (known := _recall(asked)) is not None:
            return known
    fluid = fluid_bound(arrivals(), targets, conditions=conditions, times=times, weighted=True)
    share = fluid.share
    if fluid.requests <= WHOLE_REQUESTS:
        whole = whole_bound(arrivals(), targets, conditions=conditions, times=times, weighted=True)
        share = min(share, whole.share)
    with suppress(*_UNKEPT):
        _keep(asked, share)
    return share


def _digest(
    arrivals: Iterable[Arrival],
    targets: Sequence[TargetSpec],
    conditions: Mapping[str, Conditions],
    times: ServiceTimes,
) -> str:
    digest = sha256(_code())
    for target in targets:
        digest.update(f"{target}\n{conditions.get(target.id)}\n".encode())
        for offer in target.offers:
            for size in offer.latency_ns:
                digest.update(f"{list(times(target.id, offer, size))}\n".encode())
    kinds: dict[RequestClass, str] = {}
    for arrival in arrivals:
        kind = kinds.get(arrival.kind)
        if kind is None:
            kind = kinds[arrival.kind] = str(arrival.kind)
        line = f"{arrival.at_ns} {arrival.budget_ns} {arrival.weight} {arrival.size_bytes} {kind}\n"
        digest.update(line.encode())
    return digest.hexdigest()


@cache
def _code() -> bytes:
    """A digest of the code, since other code may give other digits."""
    digest = sha256(f"{scipy.__version__}\n".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()


def _recall(asked: str) -> float | None:
    file = cache_dir() / FILE
    if not file.exists():
        return None
    with closing(sqlite3.connect(file, timeout=_PATIENCE_S)) as sql:
        found = sql.execute("SELECT share FROM bounds WHERE asked = ?", (asked,)).fetchone()
    return None if found is None else float(found[0])


def _keep(asked: str, share: float) -> None:
    folder = cache_dir()
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / FILE, timeout=_PATIENCE_S)) as sql, sql:
        sql.execute("CREATE TABLE IF NOT EXISTS bounds (asked TEXT UNIQUE, share REAL)")
        row = asked, share
        sql.execute("INSERT OR REPLACE INTO bounds (asked, share) VALUES (?, ?)", row)
        sql.execute("DELETE FROM bounds WHERE rowid <= last_insert_rowid() - ?", (KEPT,))
