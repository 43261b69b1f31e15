"""The name of a model's only input, for frames that are given without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.client.arguments import (
    MAX_DEADLINE_MS,
    MAX_TASK_MS,
    Options,
    checked_deadline_ms,
    milliseconds,
)
from scheduler.client.tasks import ACCEPT_S, ANSWER_S, Question
from scheduler.core.names import hint
from scheduler.errors import InvalidInput, ModelNotFound


class InputNames:
    """Input names from a box, kept until it is lost: after a restart it may have other models."""

    def __init__(self) -> None:
        """Starts empty."""
        self._names: dict[str, str] = {}
        self._losses = 0

    def known(self, model: str, losses: int) -> str | None:
        """The name of a model's input, if it was learned since the last of `losses` losses."""
        if losses != self._losses:
            self._names.clear()
            self._losses = losses
        return self._names.get(model)

    def learn(self, model: str, models: Mapping[str, Any]) -> str:
        """Learns a name from the answer to `models`; errors are those of `only_input`."""
        self._names[model] = name = only_input(model, models)
        return name


def question_of_frame(deadline_ms: Any, options: Options) -> Question:
    """The question for the box's models, of a frame that needs the name of its input.

    A box that is away is waited for until the frame's deadline, or for a durable task as long as it
    would be offered. One that is there may take longer to answer, or frames with a short deadline
    would never learn the name.

    Raises:
        InvalidInput: The deadline is not what it should be.
    """
    durable = bool(options.get("durable"))
    if (deadline_s := options.get("deadline_s")) is not None:
        deadline_ms = milliseconds(deadline_s, deadline_ms, durable)
    most_ms = MAX_TASK_MS if durable else MAX_DEADLINE_MS
    within_ms = checked_deadline_ms(deadline_ms, most_ms=most_ms)
    within_s = max(within_ms, 1.0) / 1e3
    if durable:
        within_s = min(within_s, ACCEPT_S)
    return Question("models", timeout_s=within_s, grace_s=max(0.0, ANSWER_S - within_s))


def only_input(model: str, models: Mapping[str, Any]) -> str:
    """The name of a model's only input; `models` is the answer to that question.

    Raises:
        ModelNotFound: There is no such model, or it can't be served.
        InvalidInput: It has several inputs.
    """
    known = {described["name"]: described for described in models["models"]}
    if model not in known:
        problems = [(each["model"], each["reason"]) for each in models.get("problems", ())]
        raise ModelNotFound.among(problems, model, hint(model, known))
    names = [spec["name"] for spec in known[model]["inputs"]]
    if len(names) != 1:
        raise InvalidInput(
            f"model {model!r} has the inputs {', '.join(names)}: frames are dicts of these names"
        )
    return str(names[0])
