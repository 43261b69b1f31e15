"""How accurate the answers of a run were, of models with variants that differ in it."""

from __future__ import annotations

from collections.abc import Iterable

from replay.results import Row
from scheduler.core.target_specs import TargetSpec


class Accuracy:
    """The accuracy of the results that were on time, as a share of the best one of their models.

    A plain mean would depend on which models were served: a policy that refuses a model with a low
    accuracy would seem to be more accurate.

    Args:
        targets: Where the requests run; each offer states its accuracy, or None.
    """

    def __init__(self, targets: Iterable[TargetSpec]) -> None:
        """Begins without results."""
        self._of: dict[tuple[str | None, str, str | None], float] = {}
        by_model: dict[str, set[float]] = {}
        for target in targets:
            for offer in target.offers:
                if offer.accuracy is not None:
                    self._of[target.id, offer.model, offer.variant] = offer.accuracy
                    by_model.setdefault(offer.model, set()).add(offer.accuracy)
        self._best = {model: max(found) for model, found in by_model.items()}
        self._is_choice = any(len(found) > 1 for found in by_model.values())
        self._sum = self._best_sum = 0.0

    def add(self, row: Row) -> None:
        """Counts a request; one whose accuracy isn't known is left out."""
        if not (self._is_choice and row.on_time):
            return
        accuracy = self._of.get((row.target, row.model, row.variant))
        if accuracy is not None:
            self._sum += accuracy
            self._best_sum += self._best[row.model]

    def share(self) -> float | None:
        """The share; None if no accuracy is known, or if the variants of each model are alike."""
        return self._sum / self._best_sum if self._best_sum else None
