"""A connection's requests end once, whenever they are cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.core.requests import RequestClass
from scheduler.daemon.submission import Submission
from scheduler.ingress.in_flight import InFlight


class Intake:
    """Numbers requests from 100, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.ends: Callable[[], None] = lambda: None

    def submit(self, submissions: list[Submission]) -> list[int]:
        self.told.append([each.kind.model for each in submissions])
        self.ends()
        return list(range(100, 100 + len(submissions)))

    def cancel(self, request_id: int) -> None:
        self.told.append(request_id)


@pytest.fixture
def intake() -> Intake:
    return Intake()


@pytest.fixture
def requests(intake: Intake) -> InFlight:
    return InFlight(intake)


def taken(requests: InFlight, *client_ids: int) -> list[tuple[int, Submission]]:
    for client_id in client_ids:
        requests.take(client_id)
    kinds = [RequestClass(str(client_id)) for client_id in client_ids]
    made = [Submission(k, [], memoryview(b""), 1, 0, 1.0, False, lambda _: None) for k in kinds]
    return list(zip(client_ids, made, strict=True))


def test_what_is_cancelled_after_its_read_is_cancelled_by_the_intakes_number(intake, requests):
    requests.submit(taken(requests, 7, 8))
    requests.cancel(8)
    assert intake.told == [["7", "8"], 101]
    assert (len(requests), list(requests.submitted())) == (2, [100, 101])


def test_what_is_cancelled_in_its_own_read_is_submitted_first(intake, requests):
    read = taken(requests, 7, 8)
    for _ in range(2):
        assert requests.cancel(7) is None
    assert intake.told == []
    requests.submit(read)
    assert intake.told == [["7", "8"], 100]


def test_what_ends_as_it_is_submitted_is_neither_in_flight_nor_cancelled(intake, requests):
    read = taken(requests, 7, 8)
    requests.cancel(7)
    intake.ends = lambda: requests.end(7)
    requests.submit(read)
    assert 7 not in requests
    requests.cancel(7)
    assert intake.told == [["7", "8"]]
    assert list(requests.submitted()) == [101]


def test_of_what_is_being_restored_the_intake_knows_nothing(intake, requests):
    kept, gone = requests.restore(7, 1), requests.restore(8, 2)
    assert list(requests.submitted()) == []
    assert requests.cancel(8) is gone
    assert not requests.restored(8, gone)
    again = requests.restore(8, 3)
    assert not requests.restored(8, gone)
    assert requests.restored(8, again)
    assert requests.restored(7, kept)
    assert len(requests) == 0
    assert intake.told == []
