"""Recognises frames that are nearly identical to one answered a moment ago."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.wire import Body
from workers.model import NearRules

_REMEMBERED = 32

Blocks = NDArray[np.float64]
"""The means of a frame's blocks."""


class NearFrames:
    """The latest answered frames of one class of requests, as the means of their blocks.

    Their answers are ordinary entries of the memory tier, and can be evicted from it.

    A frame is near another one if no block mean differs by more than the model's owner allows.
    Only frames that were really run are remembered, so answers can't drift: the bound holds
    against the frame that the answer belongs to, however long the chain.

    Args:
        rules: What the model's owner allows.
        dtype: The dtype of the model's one input.
        shape: Its shape, without a batch dimension.
    """

    def __init__(self, rules: NearRules, dtype: str, shape: tuple[int, ...]) -> None:
        """Remembers nothing."""
        self.ttl_ns = int(rules.ttl_s * 1e9)
        self._distance = rules.distance
        self._dtype = dtype
        self._shape = shape
        self._cuts = [(axis, _cuts(shape[axis], rules.blocks)) for axis in _largest_two(shape)]
        self._latest = 0
        self._means: Blocks | None = None
        self._keys: list[tuple[int, bytes] | None] = [None] * _REMEMBERED

    def blocks(self, body: Body) -> Blocks:
        """The block means of a frame; about 0.4 ms for 640 x 480 in colour."""
        means: Any = np.ndarray(self._shape, self._dtype, body)
        for axis, cuts in self._cuts:
            means = _means(means, axis, cuts)
        return np.asarray(means, np.float64).ravel()

    def find(self, blocks: Blocks, now_ns: int) -> bytes | None:
        """The key of the latest frame that is near enough, unless that frame has expired."""
        if self._means is None:
            return None
        with np.errstate(invalid="ignore"):  # a frame with NaN in it is near nothing
            near = np.abs(self._means - blocks).max(axis=1, initial=0.0) <= self._distance
        places = [int(place) for place in np.flatnonzero(near)]
        if not places:
            return None
        # In the ring, the place after the latest holds the oldest.
        latest = max(places, key=lambda place: (place - self._latest - 1) % _REMEMBERED)
        found = self._keys[latest]
        return found[1] if found is not None and now_ns < found[0] else None

    def add(self, blocks: Blocks, key: bytes, now_ns: int) -> None:
        """Remembers the key under which the answer to a frame is kept."""
        if self._means is None:
            self._means = np.full((_REMEMBERED, len(blocks)), np.nan)
        self._latest = (self._latest + 1) % _REMEMBERED
        self._means[self._latest] = blocks
        self._keys[self._latest] = now_ns + self.ttl_ns, key


def _means(of: NDArray[Any], axis: int, cuts: list[int]) -> NDArray[Any]:
    """Means along an axis from each cut to the next; slices are much faster than `reduceat`."""
    if not cuts:
        return of
    dtype = _sum_dtype(of.dtype, cuts[1])
    parts = []
    for start, end in pairwise(cuts):
        part = (slice(None),) * axis + (slice(start, end),)
        parts.append(np.sum(of[part], axis=axis, dtype=dtype) / (end - start))
    return np.stack(parts, axis=axis)


def _sum_dtype(dtype: np.dtype[Any], count: int) -> Any:
    """The narrowest dtype that holds sums of `count` values; wider ones take ten times as long."""
    if dtype.kind == "f":
        return np.float32 if dtype.itemsize < 8 else np.float64
    if dtype.itemsize > 2 or count > 1 << 15:
        return np.float64
    return np.int32 if dtype.kind == "i" else np.uint32


def _largest_two(shape: tuple[int, ...]) -> list[int]:
    """The two longest axes of a frame; other axes, such as colours, are never averaged."""
    return sorted(sorted(range(len(shape)), key=lambda axis: -shape[axis])[:2])


def _cuts(size: int, blocks: int) -> list[int]:
    """Where each block of an axis begins, and where the last one ends."""
    blocks = min(size, blocks)
    return [place * size // blocks for place in range(blocks + 1)] if blocks else []
