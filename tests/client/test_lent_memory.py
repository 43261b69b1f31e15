"""What a client places in memory that a box has lent it."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from scheduler.client.call import infer_call
from scheduler.client.lent_memory import borrowed
from scheduler.own_pages import OwnPages
from scheduler.shared_pages import LEAST_BYTES
from scheduler.wire import PREFIX, FrameLimits


@pytest.mark.parametrize(("spare", "is_sent"), [(0, True), (11, True), (12, False)])
def test_where_a_body_is_may_not_make_a_header_too_large(spare, is_sent):
    pages = OwnPages(10 * LEAST_BYTES)
    lent = borrowed(pages.where)
    assert lent is not None
    call = infer_call(1, Future(), "m", {"x": np.zeros(LEAST_BYTES, np.uint8)}, 100)
    whole = sum(map(len, call.frame(FrameLimits(), "u"))) - call.body_bytes - PREFIX.size
    frame = call.frame(FrameLimits(whole + spare), "u", lent)
    assert (sum(map(len, frame)) > call.body_bytes) == is_sent
    assert len(lent._blocks._taken) == (not is_sent)
