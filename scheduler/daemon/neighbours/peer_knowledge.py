"""Knowledge about another box, from its reports and answers, and the target made from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

from scheduler.core.forms import Form
from scheduler.core.offers import Offer
from scheduler.core.signature import DTYPES, TensorSpec
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.figures import milliseconds
from scheduler.daemon.neighbours.report import Row, room_for
from scheduler.daemon.ways.meter import WayMeter
from scheduler.daemon.ways.sizes import RefusedSizes
from workers.link import ModelCard, card_from

MATERIAL = 1.25
"""A reported time that moved by less than this factor counts as unchanged, and what was learned
since is kept."""

BUDGETS = 64
"""Number of recent requests whose budgets decide how deep the queue at the other box may be."""

SPREAD = 1.5
"""Factor by which a request may take longer than planned there and still be in time."""

ANSWERS, ANSWER_REPORTS = 3, 50
"""A model's answers are expected to be as large as the smallest of its last few, within so many
reports: ten seconds. If they vary, a large one must not keep away for long requests that could be
in time, because a box that is sent nothing gives no smaller answer either."""

_ANY_NS = 1 << 62

Variant = tuple[str, str]
"""A model and one of its variants."""


class PeerKnowledge:
    """One other box, as known from its reports and its answers.

    Args:
        box: Its name.
        allows: Whether a model of a box may go by its name here.

    Attributes:
        learned: Whether an answer came since the target last came up afresh.
        too_large: Requests over the size limit that the box stated when it was met.
    """

    def __init__(self, box: str, allows: Callable[[str, ModelCard], bool]) -> None:
        """Nothing is known yet."""
        self.learned = False
        self.too_large = RefusedSizes()
        self._box = box
        self._allows = allows
        self._cards: list[ModelCard] = []
        self._rows: list[Row] = []
        self._offers: dict[Variant, Offer] = {}
        self._used: set[Variant] = set()
        self._recent: set[Variant] = set()
        self._budgets_ns: deque[int] = deque(maxlen=BUDGETS)
        self._least_bytes: dict[str, int] = {}
        self._answers: dict[str, deque[tuple[int, int]]] = {}
        self._reports = 0

    def learn(self, models: Any) -> None:
        """Records the box's models.

        Raises:
            KeyError, TypeError, ValueError: The models are malformed.
        """
        self._cards = list(map(card_from, models))
        for card in self._cards:
            self._least_bytes[card.name] = _least_bytes(card.signature.outputs)

    def usable(self) -> tuple[list[ModelCard], list[Any]]:
        """The models usable from here, compared with those known now; why others are not."""
        why = f"the model of that name on {self._box} is a different one"
        judged = [(card, self._allows(self._box, card)) for card in self._cards]
        usable = [card for card, is_allowed in judged if is_allowed]
        return usable, [[card.name, why] for card, is_allowed in judged if not is_allowed]

    def report(self, rows: Sequence[Row], under_way: set[Variant]) -> bool:
        """Records a report.

        Args:
            rows: The rows of the report.
            under_way: The variants of requests in flight there.

        Returns:
            False if the report is more current than what was learned from answers, because nothing
            was sent lately.
        """
        self._reports += 1
        usable = {card.name for card in self.usable()[0]}
        self._rows = [row for row in rows if row.model in usable]
        in_use = bool(self._used) or not self.learned
        self.learned = self.learned and in_use
        self._recent, self._used = self._used, under_way
        return in_use

    def sent(self, what: Variant, budget_ns: int) -> None:
        """Notes that a request with this total budget was sent there."""
        self._used.add(what)
        self._budgets_ns.append(budget_ns)

    def answered(self, model: str, size_bytes: int) -> None:
        """Notes the size of an answer."""
        answers = self._answers.setdefault(model, deque(maxlen=ANSWERS))
        answers.append((self._reports, size_bytes))

    def answer_bytes(self, model: str) -> int:
        """The expected size of a model's answers: of the last ones, or what is sure of it."""
        since = self._reports - ANSWER_REPORTS
        sizes = [size for at, size in self._answers.get(model, ()) if at >= since]
        return min(sizes, default=self._least_bytes.get(model, 0))

    def room(self) -> int:
        """How many requests may be there at once and still be in time, judging by recent budgets.

        At least one if there is room at all: the next request may have a longer budget.
        """
        budgets = sorted(self._budgets_ns)
        budget_ns = int(budgets[len(budgets) // 10] / SPREAD) if budgets else _ANY_NS
        rooms = [
            max(room_for(row.steps, budget_ns), min(1, room_for(row.steps, _ANY_NS)))
            for row in self._rows
        ]
        return max(rooms, default=0)

    def withdrawn(self) -> list[Variant]:
        """Earlier offers that are missing from the last report."""
        return sorted(self._offers.keys() - {(row.model, row.variant) for row in self._rows})

    @property
    def models(self) -> set[str]:
        """The models of the last report."""
        return {row.model for row in self._rows}

    def target(self, room: int, way: WayMeter, forms: tuple[Form, ...]) -> TargetSpec | None:
        """The box as a target; None while it has nothing to offer."""
        self._offers = {(row.model, row.variant): self._offer(row, way) for row in self._rows}
        if not self._offers:
            return None
        return TargetSpec(
            self._box,
            tuple(self._offers.values()),
            slots=max(1, room),
            remote=True,
            width=max(1, room),
            transfer_ns=way.transfer_ns(),
            peer=True,
            too_large=self.too_large.tensors,
            forms=forms,
        )

    def _offer(self, row: Row, way: WayMeter) -> Offer:
        """The offer of a reported variant; a known offer stays if answers are more current.

        Its latencies include the way back, also of large answers.
        """
        key = row.model, row.variant
        known = self._offers.get(key)
        after_ns = row.wait_ns + way.back_ns + int(way.byte_ns * self.answer_bytes(row.model))
        sojourn_ns = tuple(after_ns + service_ns for service_ns in row.service_ns)
        if known is not None:
            before_ns, now_ns = (s[len(s) // 2] for s in (known.latency_ns[1], sojourn_ns))
            moved = not before_ns / MATERIAL < now_ns < before_ns * MATERIAL
            if key in self._recent or key in self._used or not moved:
                return known
        latency_ns, energy_uj = {1: sojourn_ns}, {1: row.energy_uj} if row.energy_uj else {}
        return Offer(
            *(*key, row.runtime, latency_ns, row.rank, row.accuracy, energy_uj, row.item_shapes)
        )

    def describe(self) -> list[dict[str, Any]]:
        """The last report, for people and programs."""
        return [
            {
                "model": row.model,
                "variant": row.variant,
                "wait_ms": milliseconds(row.wait_ns),
                "room": row.steps[-1][1],
            }
            for row in self._rows
        ]


def _least_bytes(tensors: Iterable[TensorSpec]) -> int:
    """Their size, not counting texts and free dimensions."""
    return sum(prod(size or 0 for size in t.shape) * DTYPES.get(t.dtype, 0) for t in tensors)
