"""What a box with default settings shows to other machines: nothing."""

from __future__ import annotations

from scheduler import Client
from tests.e2e.running_agent import RunningAgent, is_local, listening


def test_no_process_listens_beyond_this_machine(shared_agent: RunningAgent) -> None:
    found = listening(shared_agent.processes())
    assert len(found) > 5  # Ray's own, HTTP and gRPC
    assert [entry for entry in found if not is_local(entry[1])] == []


def test_status_names_every_door(shared_agent: RunningAgent) -> None:
    schemes = ("http", "grpc")
    doors = [f"{scheme}://{shared_agent.address(scheme)}" for scheme in schemes]
    with Client(shared_agent.url) as client:
        assert client.status()["listening"] == [shared_agent.url, *doors]
