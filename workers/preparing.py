"""Prepare models for a device in two rounds: runtimes that compile for minutes come last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from workers.choice import Choice
from workers.model import Model, Variant
from workers.residency import Key
from workers.runtimes.base import Runtime
from workers.trials import RuntimeTrials

Progress = Callable[[int, int, str], None]
"""Called with the steps done, the steps in total, and what is happening."""


def ignore_progress(done: int, total: int, text: str) -> None:
    """A `Progress` for callers that show none."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that is ready to be served.

    Attributes:
        model: The model.
        choices: Its variants that can be served, by name.
    """

    model: Model
    choices: Mapping[str, Choice]


class Preparation:
    """Finds the runtime of each variant of some models.

    Args:
        trials: Tries the runtimes.
        models: The models.
        progress: Is told how far it is.
    """

    def __init__(self, trials: RuntimeTrials, models: Iterable[Model], progress: Progress) -> None:
        """Count the steps: one for each variant and runtime."""
        self._trials = trials
        self._progress = progress
        self._steps = {
            (model.name, variant.name): max(1, len(trials.candidates(model, variant)))
            for model in models
            for variant in model.variants
        }
        self._total, self._done = sum(self._steps.values()), 0
        self._late: list[tuple[Model, Variant, Runtime]] = []

    def choose(self, model: Model, variant: Variant) -> Choice | None:
        """The best runtime for a variant that needs no build; None if there is none yet."""
        unbuilt = self._trials.unbuilt(model, variant)
        self._late += [(model, variant, runtime) for runtime in unbuilt]
        choice = self._trials.choose(model, variant, partial(self._note, self._done))
        self._done += self._steps[model.name, variant.name] - len(unbuilt)
        self._progress(self._done, self._total, f"{model.name}/{variant.name}")
        return choice

    def challenges(self, choices: Mapping[Key, Choice]) -> Iterator[tuple[Model, Variant, Choice]]:
        """Build what `choose` left out, and yield each choice that is better than the current one.

        Args:
            choices: The current choices.
        """
        for model, variant, runtime in self._late:
            incumbent = choices.get((model.name, variant.name))
            note = partial(self._note, self._done)
            better = self._trials.challenge(model, variant, runtime, incumbent, note)
            if better is not None:
                yield model, variant, better
            self._done += 1
            text = f"{model.name}/{variant.name}: {runtime.name}"
            self._progress(self._done, self._total, text)

    def _note(self, done: int, finished: int, text: str) -> None:
        self._progress(done + finished, self._total, text)
