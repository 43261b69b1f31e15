from __future__ import annotations

from collections.abc import Iterator

import pytest

from policies import POLICIES
from tests.core.laws import Watch


@pytest.fixture(params=sorted(POLICIES))
def each_box(request) -> Iterator[Watch]:
    """A watched scheduler with each policy; whatever a test leaves in it must end lawfully."""
    watch = Watch(POLICIES[request.param])
    yield watch
    watch.close()


@pytest.fixture
def box() -> Iterator[Watch]:
    """A watched scheduler with `edf`: no admission test, so that what waits is easily told."""
    watch = Watch(POLICIES["edf"])
    yield watch
    watch.close()
