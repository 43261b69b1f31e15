"""Which models are in memory, when there is no room for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workers.batches import ItemRunner
from workers.runtimes.base import Session

Key = tuple[str, str]
"""A model's name and a variant's."""


@dataclass(slots=True)
class Resident:
    """A variant that is served, in memory or not.

    Attributes:
        load: Loads it; raises `RunError` when that fails.
        batched: As in the model's signature.
        size_bytes: The memory that it counts for: the size of its files.
        pinned: True when it never leaves memory.
        session: What runs it, or None while it is out of memory.
    """

    load: Callable[[], Session]
    batched: bool
    size_bytes: int
    pinned: bool
    session: Session | None


class Residency:
    """Keeps the variants that were used last, within a budget.

    Not thread-safe: the device's lock is held around every call.
    """

    def __init__(self, budget_bytes: int | None, tell: Callable[[Key, bool], None]) -> None:
        """Keep within a budget, None being none; `tell` hears who left memory or came back."""
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
        """Serve a variant, in place of what served it before."""
        self._unload(key)
        self._residents.pop(key, None)
        self._residents[key] = resident
        if resident.session is not None:
            self._runners[key] = ItemRunner(resident.session, resident.batched)
            self._make_room(key)

    def runner(self, key: Key) -> ItemRunner:
        """What runs a variant, which is loaded if it is not in memory.

        Raises:
            KeyError: It is not served.
            RunError: It cannot be loaded any more.
        """
        resident = self._residents.pop(key)
        self._residents[key] = resident
        runner = self._runners.get(key)
        if runner is not None:
            return runner
        self._make_room(key)  # before, for there may not be room for both
        resident.session = resident.load()
        self._runners[key] = runner = ItemRunner(resident.session, resident.batched)
        self._tell(key, True)
        return runner

    def evict(self, key: Key) -> None:
        """Take a variant out of memory; its next request loads it."""
        if self._unload(key):
            self._tell(key, False)

    def close(self) -> None:
        """Free all that is loaded, and serve nothing."""
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
