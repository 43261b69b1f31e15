"""What the driver owes callers beyond what the core decides."""

from __future__ import annotations

import asyncio

import structlog.testing

from scheduler.core.outcomes import Outcome
from scheduler.core.requests import RequestClass
from scheduler.daemon.driver import Driver
from scheduler.daemon.submission import Answer, Submission


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
