"""Who asks about durable tasks, for as long as it is there."""

from __future__ import annotations

from collections.abc import Callable


class Asker:
    """A caller that may go away while it waits.

    Attributes:
        is_gone: Whether it has gone away.
        held: The bytes of results that were read for it and have not left the box.
    """

    def __init__(self) -> None:
        """Is there, and waits for nothing."""
        self.is_gone = False
        self.held = 0
        self._waits: dict[Callable[[], None], None] = {}

    def begin(self, give_up: Callable[[], None]) -> None:
        """Begins a wait; `give_up` is called if the caller goes away before its end."""
        self._waits[give_up] = None

    def end(self, give_up: Callable[[], None]) -> None:
        """Ends a wait."""
        self._waits.pop(give_up, None)

    def leave(self) -> None:
        """Goes away."""
        self.is_gone = True
        for give_up in list(self._waits):
            give_up()
