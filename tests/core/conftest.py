from __future__ import annotations

from collections.abc import Iterator

import pytest

from policies import POLICIES
from replay.laws import Watch
from tests.core.world import PROMPT


@pytest.fixture(params=PROMPT)
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
