"""Stack items into the arrays of a batch with as little copying as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workers.tensors import Array

# Below this size, copying is faster than checking whether the arrays are adjacent.
_LOOK_BYTES = 16_384


def stack_items(items: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Stack items into one array per input, with a leading batch dimension.

    A single item is not copied, nor are large arrays that are adjacent in memory, such as those of
    one message. The items must outlive the result.

    Raises:
        ValueError: The items differ in the names or shapes of their tensors.
    """
    first = items[0]
    if len(items) == 1:
        return {name: array[None] for name, array in first.items()}
    if any(item.keys() != first.keys() for item in items):
        raise ValueError("the items of a batch have different tensors")
    return {name: _stack([item[name] for item in items]) for name in first}


def _stack(arrays: list[Array]) -> Array:
    if arrays[0].nbytes >= _LOOK_BYTES and _are_adjacent(arrays):
        first = arrays[0]
        shape, strides = (len(arrays), *first.shape), (first.nbytes, *first.strides)
        return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)
    return np.array(arrays)  # like np.stack, in half the time


def _are_adjacent(arrays: list[Array]) -> bool:
    first = arrays[0]
    start = _address(first)
    return all(
        array.dtype == first.dtype
        and array.shape == first.shape
        and array.flags.c_contiguous
        and _address(array) == start + index * first.nbytes
        for index, array in enumerate(arrays)
    )


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
