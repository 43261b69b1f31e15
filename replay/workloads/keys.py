"""Reads mappings so that an error names the faulty key and what would be accepted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from replay.workloads.amounts import Amount, Fixed, OneOf, Uniform
from replay.workloads.errors import WorkloadError
from scheduler.core.names import did_you_mean, near

MOST = 1e12
"""The largest number that is taken: in milliseconds, 31 years."""


class Keys:
    """A mapping whose keys are taken one by one until none is left.

    Args:
        data: The mapping.
        source: What errors call the whole, e.g. a file's name.
        place: Where the mapping is within the whole, e.g. `mix[0]`; empty for the whole itself.
        wanted: What it should be, for the error if it isn't a mapping.

    Raises:
        WorkloadError: It isn't a mapping.
    """

    def __init__(self, data: object, source: str, place: str, wanted: str) -> None:
        """Begins with no key taken."""
        self.source = source
        self.place = place
        if not isinstance(data, Mapping):
            raise WorkloadError(f"{self} should be {wanted}; got {shortened(data)}")
        self._data: Mapping[str, Any] = {str(key): value for key, value in data.items()}
        self._taken: list[str] = []

    def __str__(self) -> str:
        return f"{self.source}: {self.place}" if self.place else self.source

    def __contains__(self, key: str) -> bool:
        return self._data.get(key) is not None

    def take(self, key: str) -> Any:
        """The value of a key; None if the key is missing."""
        if key not in self._taken:
            self._taken.append(key)
        return self._data.get(key)

    def of(self, key: str) -> str:
        """The full path of a key."""
        return f"{self.place}.{key}" if self.place else key

    def wrong(self, key: str, wanted: str) -> WorkloadError:
        """The error for a value of the wrong form."""
        got = self._data.get(key)
        said = f"it is missing{self.misspelt(key)}" if got is None else f"got {shortened(got)}"
        return self.problem(key, f"should be {wanted}; {said}")

    def misspelt(self, *missing: str) -> str:
        """For an error: an unknown key that may be a misspelling of a missing one, or nothing."""
        for key in self._data:
            if key not in self._taken and (meant := near(_spelt(key), missing)):
                return f", but there is {key!r}; did you mean {meant!r}?"
        return ""

    def problem(self, key: str, said: str) -> WorkloadError:
        """An error about a key."""
        return WorkloadError(f"{self.source}: {self.of(key)} {said}")

    def number(
        self, key: str, wanted: str, default: float | None = None, *, zero: bool = False
    ) -> float:
        """A finite number above 0, or 0 if `zero`; without a default, the key is required."""
        value = self.take(key)
        if value is None and default is not None:
            return default
        if not self._fits(key, value, zero):
            raise self.wrong(key, wanted)
        return float(value)

    def whole(self, key: str, wanted: str, default: int, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        value = self.take(key)
        if value is None:
            return default
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(key, wanted)
        return value

    def text(self, key: str, wanted: str, *, required: bool = False) -> str | None:
        """A text that isn't empty; None if the key is missing and not required."""
        value = self.take(key)
        if value is None and not required:
            return None
        if not isinstance(value, str) or not value:
            raise self.wrong(key, wanted)
        return value

    def flag(self, key: str) -> bool:
        """`true` or `false`; false if the key is missing."""
        value = self.take(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return bool(value)

    def amount(self, key: str, unit: str, *, zero: bool = False) -> Amount | None:
        """A number, `{uniform: [LOW, HIGH]}` or `{choice: [A, B]}`; None if the key is missing."""
        value = self.take(key)
        if value is None:
            return None
        numbers = f"{unit} {'from' if zero else 'above'} 0"
        wanted = f"{numbers}, or {{uniform: [LOW, HIGH]}} or {{choice: [A, B]}} of such"

        def fits(number: object) -> bool:
            return self._fits(key, number, zero)

        if fits(value):
            return Fixed(float(value))
        if isinstance(value, Mapping) and len(value) == 1:
            (form, values), *_ = value.items()
            if isinstance(values, list) and values and all(map(fits, values)):
                if form == "choice":
                    return OneOf(tuple(map(float, values)))
                if form == "uniform" and len(values) == 2 and values[0] <= values[1]:
                    return Uniform(float(values[0]), float(values[1]))
        raise self.wrong(key, wanted)

    def _fits(self, key: str, value: Any, zero: bool) -> bool:
        """Whether a value is a number above 0, or 0 if `zero`; one above `MOST` is an error."""
        if not is_number(value):
            return False
        if value > MOST:
            raise self.problem(key, f"should be at most {MOST:g}; got {value:g}")
        return bool(value > 0 or (zero and value == 0))

    def items(self, key: str, wanted: str) -> Iterator[tuple[str, Any]]:
        """The items of a list that isn't empty, each with its place."""
        value = self.take(key)
        if not isinstance(value, list) or not value:
            raise self.wrong(key, wanted)
        for index, item in enumerate(value):
            yield f"{self.of(key)}[{index}]", item

    def finish(self) -> None:
        """Refuses keys that nobody took, and suggests what was meant.

        Raises:
            WorkloadError: There is such a key.
        """
        for key in self._data:
            if key not in self._taken:
                raise self.problem(key, f"is no key; {nearest(key, self._taken)}")


def is_number(value: object) -> bool:
    """Whether a value is a finite number; true and false are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggests the known word that was probably meant, or else lists all of them."""
    names = list(known)
    return did_you_mean(_spelt(word), names, f"known here: {', '.join(names)}")


def _spelt(word: str) -> str:
    """Spells a word like a key: in lower case, with underscores."""
    return word.lower().replace("-", "_")


def shortened(value: object) -> str:
    """A value in the form in which errors quote it."""
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
