"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from tests.hosts import Site, why_no_hosts

# A slow or busy machine is no reason for a test to fail.
settings.register_profile("laxity", deadline=None)
settings.load_profile("laxity")


@pytest.fixture(scope="session")
def new_site() -> Callable[[int], Site]:
    """Makes so many hosts; who asks for it is skipped where there can be none."""
    if reason := why_no_hosts():
        pytest.skip(reason)
    return Site
