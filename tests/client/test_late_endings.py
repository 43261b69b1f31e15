"""What a caller is told whose deadline has passed."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from scheduler.client.call import infer_call
from scheduler.client.late_endings import expired


@pytest.mark.parametrize(("way_ms", "told"), [(120.4, "120"), (1600, "1,600"), (21.26, "21.3")])
def test_a_link_that_takes_longer_than_the_deadline_is_told_in_plain_figures(
    way_ms: float, told: str
) -> None:
    call = infer_call(1, Future(), "m", {"x": np.zeros(1)}, 20)
    error = expired(call, "tcp://box:8702", way_ms * 1e6, "", "")
    assert f"the round trip to tcp://box:8702 takes {told} ms by itself" in str(error)
