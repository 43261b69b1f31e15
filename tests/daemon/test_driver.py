"""What the driver owes callers beyond what the core decides."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
import structlog.testing

from scheduler.core.events import TargetUp
from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission
from scheduler.policy_loading import NamedPolicy
from tests.core.world import MS, M, offer, target


def test_a_caller_that_can_not_be_answered_costs_no_other_its_answer() -> None:
    def fail(answer: Answer) -> None:
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

    async def scene() -> list[Answer]:
        driver, answers = Driver(), list[Answer]()
        asked = [
            Submission(RequestClass("m"), [], memoryview(b""), 2**62, 3, 1.0, False, reply)
            for reply in (fail, answers.append)
        ]
        with structlog.testing.capture_logs() as logs:
            assert driver.submit(asked) == [1, 2]
        (told,) = [entry for entry in logs if entry["event"] == "an answer could not be given"]
        assert (told["request"], told["outcome"]) == (1, "unavailable")
        await driver.close()
        return answers

    (answer,) = asyncio.run(scene())
    assert answer.outcome is Outcome.UNAVAILABLE


@pytest.mark.parametrize("change", ["queue.remove(request)", "view.queues.clear()"])
def test_a_policy_that_breaks_the_state_ends_its_scheduler(change: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n    def decide(self, view):\n"
        "        for queue in list(view.queues.values()):\n"
        f"            for request in list(queue):\n                {change}\n        return ()\n"
    )
    now_ns, ended = [0], list[str]()

    async def scene() -> None:
        driver = Driver(NamedPolicy(str(file), {}), clock_ns=lambda: now_ns[0])
        driver.on_broken = ended.append
        driver._handle(TargetUp(target("cpu:0", offer())))
        request = Submission(M, [], memoryview(b""), 50 * MS, 3, 1.0, False, lambda answer: None)
        (request_id,) = driver.submit([request])
        now_ns[0] = 50 * MS
        with contextlib.suppress(KeyError):
            driver.cancel(request_id)

    asyncio.run(scene())
    why = ended[0]
    assert why.startswith(f"{file}: ")
    assert why.endswith("; did the policy change the view, which is read-only?")
