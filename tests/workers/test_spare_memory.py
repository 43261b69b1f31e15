"""Memory of a batch of long ago."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from scheduler.own_pages import OwnPages
from tests.workers import onnx_models
from tests.workers.test_device_host import CPU_RUNTIMES
from workers.choice import Choice
from workers.memory import resident_bytes
from workers.profile_store import Profile
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceSpec, RunError
from workers.sampling import sample_items
from workers.served_variants import ServedVariants
from workers.spare_memory import IDLE_S, SPARE_BYTES, SpareMemory
from workers.stuck import StuckWatch

KEY = ("relu", "1")
CPU = DeviceSpec("cpu:0", "cpu")
LARGE = SPARE_BYTES // 4 * 5 // 4


@pytest.fixture(params=CPU_RUNTIMES)
def serving(request, add, load, tmp_path):
    """What runs a model of any width."""
    add("relu", onnx_models.relu(width="W"))
    model = load("relu")
    session = RUNTIMES[request.param]().load(model, model.variants[0], CPU, tmp_path)

    def load_again(*_):
        raise RunError("it never leaves memory")

    served = ServedVariants(None, load_again, lambda offer: None, StuckWatch(None))
    served.serve(model, model.variants[0], Choice(request.param, session, Profile({1: (1,)})))
    yield model, served
    served.close()


def run(served, count):
    (answer,) = served.residency.runner(KEY).run([{"x": np.full(count, -1, np.float32)}], 1)
    return answer["y"][:3].tolist(), len(answer["y"])


def test_a_device_that_idles_gives_back_what_a_large_batch_took(serving):
    model, served = serving
    idle_s = IDLE_S
    spare = SpareMemory(
        served,
        lambda _key, count: sample_items(model, count),
        lambda: idle_s,
    )
    run(served, 1)
    spare.look()
    before = resident_bytes()
    for _ in range(2):
        idle_s = 0
        run(served, LARGE)
        spare.look()
        assert resident_bytes() - before >= SPARE_BYTES
        idle_s = IDLE_S
        spare.look()
        assert resident_bytes() - before < SPARE_BYTES // 4
        assert run(served, 3) == ([0, 0, 0], 3)


def test_little_is_kept_and_giving_back_is_watched_like_a_batch(serving):
    model, served = serving
    taken = 10**9
    ran: list[object] = []

    @contextmanager
    def running(*batch: object) -> Iterator[None]:
        ran.append(batch)
        yield
        ran.append("ended")

    served.running = running
    spare = SpareMemory(
        served,
        lambda _key, count: sample_items(model, count),
        lambda: IDLE_S,
        lambda: taken,
    )
    served.residency.runner(KEY).give_back = lambda _items: ran.append("gave back")
    spare.look()
    taken += SPARE_BYTES - 1
    spare.look()
    assert ran == []
    taken += 1
    spare.look()
    spare.look()  # what could not be given back is not asked for again and again
    assert ran == [(KEY, 1), "gave back", "ended"]


def test_inputs_in_shared_memory_are_no_memory_of_the_worker():
    before = resident_bytes()
    pages = OwnPages(SPARE_BYTES)
    pages.block(0, SPARE_BYTES // 4)[:] = 1
    assert resident_bytes() - before < SPARE_BYTES // 8
