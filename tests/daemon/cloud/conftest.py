from __future__ import annotations

import pytest

from scheduler.daemon.cloud import pace


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that is late on a busy machine is no outage, except where outages are tested."""
    if request.path.stem != "test_outages":
        monkeypatch.setattr(pace, "_LEAST_PATIENCE_S", 5.0)
