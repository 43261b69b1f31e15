"""Decide which variants stay in memory when there is no room for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workers.batches import ItemRunner
from workers.runtimes.base import Session

Key = tuple[str, str]
"""A model's and a variant's name."""


@dataclass(slots=True)
class Resident:
    """A served variant, in memory or not.

    Attributes:
        load: Loads it; raises `RunError` when that fails.
        batched: As in the model's signature.
        size_bytes: Its share of the memory budget: the size of its files.
        pinned: True when it never leaves memory.
        session: The loaded session, or None while it is out of memory.
    """

    load: Callable[[], Session]
    batched: bool
    size_bytes: int
    pinned: bool
    session: Session | None


class Residency:
    """Keeps the most recently used variants in memory, within a budget.

    Not thread-safe: callers hold the device's lock.
    """

    def __init__(self, budget_bytes: int | None, tell: Callable[[Key, bool], None]) -> None:
        """Keep within a budget, if any; `tell` is called when a variant is evicted or reloaded."""
        self._budget_bytes = budget_bytes
        self._tell = tell
        # Least recently used first.
        self._residents: dict[Key, Resident] = {}
        self._runners: dict[Key, ItemRunner] = {}

    @property
    def keys(self) -> list[Key]:
        """All variants that are served."""
        return list(self._residents)

    def is_loaded(self, key: Key) -> bool:
        """Whether a variant is in memory."""
        return key in self._runners

    def admit(self, key: Key, resident: Resident) -> None:
        """Serve a variant, replacing its previous resident."""
        self._unload(key)
        self._residents.pop(key, None)
        self._residents[key] = resident
        if resident.session is not None:
            self._runners[key] = ItemRunner(resident.session, resident.batched)
            self._make_room(key)

    def runner(self, key: Key) -> ItemRunner:
        """The runner of a variant, which is loaded first if it is not in memory.

        Raises:
            KeyError: It is not served.
            RunError: It cannot be loaded any more.
        """
        resident = self._residents.pop(key)
        self._residents[key] = resident
        runner = self._runners.get(key)
        if runner is not None:
            return runner
        self._make_room(key)  # before loading: there may not be room for both
        resident.session = resident.load()
        self._runners[key] = runner = ItemRunner(resident.session, resident.batched)
        self._tell(key, True)
        return runner

    def evict(self, key: Key) -> None:
        """Evict a variant from memory; its next request loads it again."""
        if self._unload(key):
            self._tell(key, False)

    def remove(self, key: Key) -> None:
        """Serve a variant no longer."""
        self._unload(key)
        del self._residents[key]

    def close(self) -> None:
        """Close all sessions and serve nothing."""
        for key in self.keys:
            self._unload(key)
        self._residents.clear()

    def _make_room(self, newest: Key) -> None:
        if self._budget_bytes is None:
            return
        loaded = [key for key in self._residents if key in self._runners or key == newest]
        excess = sum(self._residents[key].size_bytes for key in loaded) - self._budget_bytes
        for key in loaded:
            if excess <= 0:
                return
            if key != newest and not self._residents[key].pinned:
                self.evict(key)
                excess -= self._residents[key].size_bytes

    def _unload(self, key: Key) -> bool:
        if self._runners.pop(key, None) is None:
            return False
        resident = self._residents[key]
        if resident.session is not None:
            resident.session.close()
            resident.session = None
        return True
