"""Frames that are nearly the same as one that was answered a moment ago."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.daemon.cache.entries import Kept
from scheduler.wire import Body
from workers.model import NearRules

_REMEMBERED = 32

Blocks = NDArray[np.float64]
"""The means of a frame's blocks."""


class NearFrames:
    """The latest answered frames of one class of requests, as the means of their blocks.

    A frame is near another one where the mean of no block differs by more than the model's
    owner allows. Only frames that were really run are remembered, so that answers can't drift:
    the bound holds against the frame that the answer belongs to, however long the chain.

    Args:
        rules: What the model's owner allows.
        dtype: Of the model's one input.
        shape: Its shape, without a batch dimension.
    """

    def __init__(self, rules: NearRules, dtype: str, shape: tuple[int, ...]) -> None:
        """Remembers nothing."""
        self.ttl_ns = int(rules.ttl_s * 1e9)
        self._distance = rules.distance
        self._dtype = dtype
        self._shape = shape
        self._cuts = [
            (axis, _cuts(shape[axis], rules.blocks), shape[axis]) for axis in _largest_two(shape)
        ]
        self._seen: deque[tuple[int, Blocks, Kept]] = deque(maxlen=_REMEMBERED)

    def blocks(self, body: Body) -> Blocks:
        """The block means of a frame."""
        means: Any = np.ndarray(self._shape, self._dtype, body)
        for axis, cuts, size in self._cuts:
            sums = np.add.reduceat(means, cuts, axis=axis, dtype=np.float64)
            counts = np.diff(cuts, append=size)
            shape = [1] * sums.ndim
            shape[axis] = len(counts)
            means = sums / counts.reshape(shape)
        return np.asarray(means, np.float64).ravel()

    def find(self, blocks: Blocks, now_ns: int) -> Kept | None:
        """The answer to a frame that is near enough and not too old; the latest one."""
        for until_ns, seen, kept in reversed(self._seen):
            if now_ns >= until_ns:
                break
            with np.errstate(invalid="ignore"):  # a frame with NaN in it is near nothing
                distance = np.abs(seen - blocks).max(initial=0.0)
            if distance <= self._distance:
                return kept
        return None

    def add(self, blocks: Blocks, kept: Kept, now_ns: int) -> None:
        """Remembers the answer to a frame."""
        self._seen.append((now_ns + self.ttl_ns, blocks, kept))


def _largest_two(shape: tuple[int, ...]) -> list[int]:
    """The axes along which a frame extends; what is left, such as colours, is never averaged."""
    return sorted(sorted(range(len(shape)), key=lambda axis: -shape[axis])[:2])


def _cuts(size: int, blocks: int) -> NDArray[np.intp]:
    """Where each of the blocks of an axis begins."""
    blocks = min(size, blocks)
    return np.arange(blocks) * size // max(1, blocks)
