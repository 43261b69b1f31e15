"""The state of another box, reported to the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scheduler.client.connection import Connection
from scheduler.daemon.link import LinkListener
from scheduler.daemon.neighbours.members import SUSPECT_NS
from scheduler.daemon.neighbours.peer_knowledge import PeerKnowledge, Variant
from scheduler.daemon.neighbours.report import Row
from scheduler.daemon.ways.meter import WayMeter
from scheduler.daemon.ways.shrinking import Shrinkings

if TYPE_CHECKING:
    from scheduler.daemon.neighbours.neighbours import Neighbours

_NOTHING = "it offers nothing at present that can be used from here"


class PeerStanding:
    """What the core is told about another box.

    Args:
        box: The name of the other box; the target's id.
        neighbours: The boxes of the site, and this one.
        meter: The measurements of the way.
        listener: Passes reports to the core.
        on_nothing: Called with the reason once the box offers nothing; must call `lose`.

    Attributes:
        known: What is known of the box from its reports and answers.
        shrinkings: The smaller forms of inputs that it can undo.
        is_up: Whether the core counts it as up.
    """

    def __init__(
        self,
        box: str,
        neighbours: Neighbours,
        meter: WayMeter,
        listener: LinkListener,
        on_nothing: Callable[[str], None],
    ) -> None:
        """Knows nothing of the box yet."""
        self.known = PeerKnowledge(box, neighbours.allows)
        self.shrinkings = Shrinkings()
        self.is_up = False
        self._box = box
        self._neighbours = neighbours
        self._meter = meter
        self._listener = listener
        self._on_nothing = on_nothing
        self._is_leaving = False
        self._encodings: frozenset[str] = frozenset()
        self._problems: list[Any] = []

    def begin(self, connection: Connection) -> None:
        """Begins anew on another connection, as the box may have been restarted."""
        self._is_leaving = connection.draining
        self._encodings = connection.encodings
        self.known.too_large.clear()

    def learn(self, models: Any) -> None:
        """Records the box's models, which can then be requested here too.

        Raises:
            KeyError, TypeError, ValueError: The models are malformed.
        """
        self.known.learn(models)
        self._tell_models()

    def _tell_models(self) -> None:
        cards, self._problems = self.known.usable()
        self._listener.on_catalog(self._box, cards, self._problems, own=False)

    def report(self, rows: list[Row], under_way: set[Variant]) -> None:
        """Takes in a report of the box; see `PeerKnowledge.report`."""
        if self.known.usable()[1] != self._problems:  # this box's own models have changed
            self._tell_models()
        in_use = self.known.report(rows, under_way)
        if not in_use and self.known.models:
            # Nothing is sent there, maybe because of outdated learning: start afresh from the
            # report.
            self.is_up = False
        self.tell()

    def leave(self) -> None:
        """The box has announced that it takes nothing more."""
        self._is_leaving = True
        if self.is_up:
            self.tell()

    def lose(self, reason: str) -> None:
        """Reports the box as lost, unless it is."""
        if self.is_up:
            self.is_up = False
            self._listener.on_lost(self._box, f"box {self._box}: {reason}", blameless=True)

    def tell(self, closed_ns: int = 0) -> None:
        """Reports the box as of its last report, and for how long it is closed."""
        if not self.known.models:
            self._on_nothing(_NOTHING)
            self._listener.on_progress(self._box, 0, 0, f"box {self._box}: {_NOTHING}")
        elif self.is_up and (gone := self.known.withdrawn()):
            self._listener.on_withdrawn(self._box, gone, f"{self._box} offers it no longer")
        room = self.known.room()
        cards = [self._neighbours.card(model) for model in sorted(self.known.models)]
        self.shrinkings.allow(cards, self._encodings)
        spec = self.known.target(room, self._meter, self.shrinkings.forms)
        if spec is None:
            return
        if self._is_leaving or not room:
            closed_ns = max(closed_ns, SUSPECT_NS)
        if not self.is_up:
            self.is_up = True
            self._listener.on_progress(self._box, 1, 1, "ready")
            self._listener.on_up(spec)
            if not closed_ns:
                return
        self._listener.on_changed(spec, closed_ns)
