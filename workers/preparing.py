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
        self._found: dict[Key, Choice] = {}

    def choose(self, model: Model, variant: Variant) -> Choice | None:
        """The best runtime for a variant that needs no build; None if there is none yet."""
        key = model.name, variant.name
        unbuilt = self._trials.unbuilt(model, variant)
        self._late += [(model, variant, runtime) for runtime in unbuilt]
        choice = self._trials.choose(model, variant, partial(self._note, self._done))
        if choice is not None:
            self._found[key] = choice
        self._done += self._steps[key] - len(unbuilt)
        self._progress(self._done, self._total, "/".join(key))
        return choice

    def found(self, model: Model) -> Prepared:
        """A model with the choices so far."""
        choices = {name: choice for (of, name), choice in self._found.items() if of == model.name}
        return Prepared(model, choices)

    def awaits(self, model: Model) -> bool:
        """Whether a variant of a model can be served only once a runtime has compiled it."""
        late = [variant.name for of, variant, _ in self._late if of is model]
        return any((model.name, name) not in self._found for name in late)

    def challenges(self) -> Iterator[tuple[Model, Variant, Choice | None]]:
        """Build what `choose` left out, one after the other, and all of a model in a row.

        Yields:
            The choice, if it is better than the one so far; else None.
        """
        for model, variant, runtime in self._late:
            key = model.name, variant.name
            note = partial(self._note, self._done)
            better = self._trials.challenge(model, variant, runtime, self._found.get(key), note)
            if better is not None:
                self._found[key] = better
            yield model, variant, better
            self._done += 1
            self._progress(self._done, self._total, f"{'/'.join(key)}: {runtime.name}")

    def _note(self, done: int, finished: int, text: str) -> None:
        self._progress(done + finished, self._total, text)
