"""What a worker is told of a box's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.worker_arguments import worker_arguments
from scheduler.config.box import Config
from scheduler.config.devices import DeviceConfig
from tests.workers.test_profiling import MS, FakeDevice
from workers.profiling import measure_ladder


@pytest.mark.parametrize(("seconds", "largest"), [(2, 1), (6, 2), (30, 16)])
def test_who_gives_slow_models_more_time_has_them_in_larger_batches(seconds, largest):
    config = Config.model_validate({"profile": {"seconds": seconds}})
    *_, max_batch, effort = worker_arguments(config, DeviceConfig(id="cpu:0"), Path("link"))
    device = FakeDevice(lambda batch, run: 2_000 * MS + 300 * MS * batch)

    ladder = measure_ladder(device.run, max_batch, effort, clock_ns=device.read_ns)

    assert max(ladder) == largest
