"""What can go wrong with the scheduler itself, as opposed to with a request."""

from __future__ import annotations

from types import FrameType

from scheduler.core.commands import Command

INTERRUPTIONS = (KeyboardInterrupt,)
"""What ends foreign code from outside. All else that it raises must end nothing else: `sys.exit`, a
cancellation, and the panic of a module in Rust are no `Exception`, but failures of its own."""


def words_of(fault: BaseException) -> str:
    """What was raised, and its text where it has one, as a `MemoryError` has none.

    Nothing in the text commands a terminal, and one that can't be made ends nothing.
    """
    try:
        text = "".join([c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(fault)])
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        text = f"(its text can't be had: {type(error).__name__})"
    return f"{type(fault).__name__}: {text}" if text else type(fault).__name__


_ROOMS = ("scheduler", "policies", "replay")
"""What decides and calls what decides; what a policy of one's own is written in is none of it."""


def place_of(fault: BaseException) -> str:
    """Where foreign code has failed, as `, at FILE:LINE`; empty where only this project's ran.

    It is the last line there of the first foreign file on the way, where its author looks first.
    """
    module, place = None, ""
    trace = fault.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_globals.get("__name__", "")
        if module is None and name.partition(".")[0] not in _ROOMS:
            module = name
        if name == module:
            place = f", at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def line_in(module: str, frame: FrameType | None) -> str:
    """Which line of a module runs in a frame or its callers, as `FILE:LINE`; empty if none does."""
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


class InvariantError(AssertionError):
    """The scheduler's state, or what it is told, contradicts itself."""


class ImpossibleDecision(Exception):
    """A policy decided what can't be done; the message says why and tells the story."""


class PolicyFailed(Exception):
    """The policy raised, or decided the impossible; the state is sound and nothing is lost.

    Attributes:
        commands: What is to be done all the same.
    """

    def __init__(self, message: str, commands: list[Command]) -> None:
        """Keeps the commands of the event during which it happened."""
        super().__init__(message)
        self.commands = commands
