"""What a caller gets for a request that succeeded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple

from numpy.typing import NDArray

from scheduler import wire
from scheduler.core.figures import figure
from scheduler.core.outcomes import Outcome
from scheduler.errors import InvalidInput
from scheduler.texts import dtype_name


class Timing(NamedTuple):
    """How a request's time was spent on the box that answered, in nanoseconds.

    Attributes:
        queue_ns: From admission to dispatch to a target.
        transfer_ns: Moving tensors to the target and back.
        execute_ns: The runtime's own time for the batch.
        total_ns: From the frame's arrival at the box to the writing of the answer.
    """

    queue_ns: int
    transfer_ns: int
    execute_ns: int
    total_ns: int


def with_restoring(timing_ns: tuple[int, int, int, int], restore_ns: int) -> Timing:
    """Adds the time that restoring inputs from a smaller form took to a request's timing.

    It counts as transfer.
    """
    queue_ns, transfer_ns, execute_ns, total_ns = timing_ns
    return Timing(queue_ns, transfer_ns + restore_ns, execute_ns, total_ns + restore_ns)


@dataclass(slots=True, eq=False, repr=False)
class Result:
    """The outputs of one inference, and how it went.

    Attributes:
        outputs: Arrays by output name. They are views of the received bytes and may be read-only;
            copy an array to change it.
        outcome: `completed`, or `late` if the caller accepts that.
        target: Where it ran, e.g. `gpu:0`, or the name of a peer or cloud. `cache` if the result
            was cached, `cache (running)` if an identical request was already running, and `cache
            (near)` if the result is that of a nearly equal input.
        variant: The variant of the model that ran.
        runtime: The runtime that ran it.
        batch: How many requests shared its batch.
        timing: How the time was spent.
        notes: Further facts about how the outputs were made, e.g. that the inputs travelled with
            less precision; usually empty.
    """

    outputs: dict[str, NDArray[Any]]
    outcome: Outcome
    target: str
    variant: str
    runtime: str
    batch: int
    timing: Timing
    notes: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The output called `name`.

        Raises:
            KeyError: There is no such output; the message names the outputs.
        """
        try:
            return self.outputs[name]
        except KeyError:
            names = ", ".join(map(repr, self.outputs))
            raise KeyError(f"no output {name!r}; there are {names}") from None

    def __iter__(self) -> Iterator[str]:
        """Iterates over the names of the outputs; `in` uses this too."""
        return iter(self.outputs)

    def __repr__(self) -> str:
        outputs = ", ".join(
            f"{name!r}: {dtype_name(array)} {list(array.shape)}"
            for name, array in self.outputs.items()
        )
        notes = f", {self.notes}" if self.notes else ""
        return (
            f"<Result {self.outcome} in {figure(self.timing.total_ns / 1e6)} ms "
            f"by {self.variant!r} on {self.target}, {{{outputs}}}{notes}>"
        )

    @property
    def late(self) -> bool:
        """Whether it came after the deadline."""
        return self.outcome is Outcome.LATE


_OUTCOMES = {outcome.value: outcome for outcome in (Outcome.COMPLETED, Outcome.LATE)}


def result_from(header: wire.Header, body: wire.Body | None) -> Result:
    """Decodes the result of a `result` message.

    Raises:
        InvalidInput: The message does not follow the protocol.
    """
    try:
        queue_ns, transfer_ns, execute_ns, total_ns = map(index, header["timing"])
        return Result(
            wire.unpack_tensors(header["out"], body),
            _OUTCOMES[header["outcome"]],
            header["target"],
            header["variant"],
            header["runtime"],
            header["batch"],
            Timing(queue_ns, transfer_ns, execute_ns, total_ns),
            dict(header.get("notes", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"a result that does not follow the protocol: {error!r}") from error
