from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.running_agent import RunningAgent


@pytest.fixture(scope="package")
def shared_agent(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent for tests that leave it as they found it."""
    agent = RunningAgent(
        tmp_path_factory.mktemp("agent"),
        models,
        listen={"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"},
        doors={"shared_memory": True},
    )
    yield agent
    agent.end()
