"""What a box with default settings shows to other machines: nothing."""

from __future__ import annotations

from tests.e2e.running_agent import RunningAgent, is_local, listening


def test_no_process_listens_beyond_this_machine(shared_agent: RunningAgent) -> None:
    found = listening(shared_agent.processes())
    assert len(found) > 5  # Ray's own, HTTP and gRPC
    assert [entry for entry in found if not is_local(entry[1])] == []
