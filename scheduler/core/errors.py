"""Faults of the scheduler itself and of its policy, as opposed to those of a request."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

from scheduler.core.commands import Command

INTERRUPTIONS = (KeyboardInterrupt,)
"""Exceptions that interrupt foreign code from outside, and propagate. Whatever else foreign code
raises is its own failure and must not end the caller, even if it is no `Exception`: `sys.exit`, a
cancellation, or the panic of a Rust module."""


def words_of(fault: BaseException) -> str:
    """The exception's type, and its text if it has one (a `MemoryError` has none).

    Control characters are escaped, so that the text can't command a terminal. If making the text
    raises, the result says so instead.
    """
    try:
        text = "".join([c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(fault)])
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        text = f"(its text can't be had: {type(error).__name__})"
    return f"{type(fault).__name__}: {text}" if text else type(fault).__name__


_ROOMS = ("scheduler", "policies", "replay")
"""The packages that hold the built-in policies and whatever calls a policy. Third-party policies
live elsewhere."""


def place_of(fault: BaseException) -> str:
    """Where foreign code failed, as `, at FILE:LINE`; empty if only this project's code ran.

    This is the innermost line in the first foreign module of the traceback, where its author looks
    first.
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
    """The line of a module that a frame or its nearest caller runs, as `FILE:LINE`; else empty."""
    while frame is not None:
        if frame.f_globals.get("__name__") == module:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def line_of(policy: object, frame: FrameType | None) -> str:
    """The line that a policy runs in a frame, as `FILE:LINE`; empty if it isn't running.

    Of a wrapper and what it wraps, it is the innermost that runs: the wrapper merely waits for it.
    """
    at = ""
    while policy is not None:
        at = line_in(type(policy).__module__, frame) or at
        policy = getattr(policy, "inner", None)
    return at


class InvariantError(AssertionError):
    """The scheduler's state contradicts itself, or an event contradicts it."""


class ImpossibleDecision(Exception):
    """A policy's decision can't be carried out; the message says why and holds the story."""


class PolicyFailed(Exception):
    """The policy raised or made an impossible decision; the state is sound and nothing is lost.

    Attributes:
        commands: The commands that must be carried out all the same.
    """

    def __init__(self, message: str, commands: list[Command]) -> None:
        """Keeps the commands of the event that was being handled."""
        super().__init__(message)
        self.commands = commands


def view_changed(fault: BaseException) -> str:
    """What is said of a fault that a policy may have caused by changing its view, the state."""
    told = str(fault) if isinstance(fault, PolicyFailed) else words_of(fault)
    return f"{told}; did the policy change the view, which is read-only?"


def meddled(fault: Exception, validate: Callable[[], None]) -> str | None:
    """What is said of a fault of the core or of its policy if the state contradicts itself.

    Args:
        fault: The fault.
        validate: `Scheduler.validate`, which may fail in other ways as well if the state is broken.
    """
    try:
        validate()
    except Exception:
        return view_changed(fault)
    return None
