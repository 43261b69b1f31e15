from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from scheduler.core.offers import Offer
from scheduler.core.outcomes import Outcome
from scheduler.daemon.submission import Answer
from scheduler.errors import ExecutionFailed, LaxityError, Overloaded
from scheduler.ingress.direct import DirectDoor


class Refuses:
    """Stands in for the native door: refuses what comes, at once or in an answer.

    Attributes:
        kept: The latest body.
    """

    def __init__(self, at_once: bool) -> None:
        self.admission = self.intake = self
        self._at_once = at_once

    def check_open(self) -> None:
        pass

    def submission(self, _header: Any, body: Any, _tenant: Any, on_end: Any) -> Any:
        self.kept = weakref.ref(body)
        if self._at_once:
            raise Overloaded("full")
        return on_end

    def submit(self, submissions: list[Any]) -> None:
        submissions[0](Answer(Outcome.OVERLOADED, "full", {}))


@pytest.mark.parametrize("at_once", [True, False])
def test_a_refused_request_leaves_no_tensors_in_cycles(at_once: bool) -> None:
    loop, door = asyncio.new_event_loop(), Refuses(at_once)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    gc.disable()
    try:
        refuses(DirectDoor(loop, door))  # type: ignore[arg-type]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()  # by then the loop has let go of the request
        loop.close()
        gc.enable()
    assert door.kept() is None


def refuses(door: DirectDoor) -> None:
    with pytest.raises(Overloaded):
        door.infer("m", {"x": np.ones(1)}, 1_000)


class Broken:
    """Stands in for the native door: fails before the request is taken in, or after.

    Attributes:
        ends: The answer's way to the caller, once the request is taken in.
    """

    def __init__(self, taken_in: bool) -> None:
        self.admission = self.intake = self
        self._taken_in = taken_in

    def check_open(self) -> None:
        pass

    def submission(self, _header: Any, _body: Any, _tenant: Any, on_end: Any) -> Any:
        if not self._taken_in:
            raise RuntimeError("a fault")
        return on_end

    def submit(self, submissions: list[Any]) -> None:
        (self.ends,) = submissions
        raise RuntimeError("a fault")


@pytest.mark.parametrize("taken_in", [False, True])
def test_a_fault_of_the_box_is_answered_once_and_logged(taken_in: bool) -> None:
    loop, door, logged = asyncio.new_event_loop(), Broken(taken_in), []
    loop.set_exception_handler(lambda _loop, told: logged.append(told["exception"]))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with pytest.raises(LaxityError, match="internal error of the box; see its log"):
            DirectDoor(loop, door).infer("m", {"x": np.ones(1)}, 1_000)  # type: ignore[arg-type]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    if taken_in:
        door.ends(Answer(Outcome.EXPIRED, "the deadline passed", {}))
    assert [str(error) for error in logged] == ["a fault"]


class Garbles:
    """Stands in for the native door: answers with outputs that are none."""

    def __init__(self) -> None:
        self.admission = self.intake = self

    def check_open(self) -> None:
        pass

    def submission(self, _header: Any, _body: Any, _tenant: Any, on_end: Any) -> Any:
        return on_end

    def submit(self, submissions: list[Any]) -> None:
        offer = Offer("m", "v", "r", {1: (1,)})
        outputs = [["y", "float32", [2]]], memoryview(bytes(4))
        submissions[0](Answer(Outcome.COMPLETED, "", {}, "cpu:0", offer, 1, outputs))


def test_outputs_that_can_not_be_read_fail_the_request_and_do_not_hold_it() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with pytest.raises(ExecutionFailed, match="the outputs can't be read: tensor 'y'"):
            DirectDoor(loop, Garbles()).infer("m", {"x": np.ones(1)}, 1_000)  # type: ignore[arg-type]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
