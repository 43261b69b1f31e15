"""The names for arrays in memory."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]

Item = dict[str, Array]
"""The tensors of one item, or of a batch, by name."""
