"""What a worker is told of its device."""

from __future__ import annotations

from edge_agent.worker_arguments import device_spec
from scheduler.config.devices import DeviceConfig
from workers.runtimes.base import DeviceSpec, Limits


def test_a_worker_is_told_all_that_is_configured_of_its_device() -> None:
    told = {
        "id": "gpu:1",
        "cores": (2, 3),
        "runtimes": ("openvino",),
        "models": ("face", "line-*"),
        "options": {"openvino": "GPU.1"},
        "nice": 5,
        "memory_mb": 400,
        "model_memory_mb": 300,
        "stuck_after_s": None,
    }
    assert told.keys() == DeviceConfig.model_fields.keys()
    limits = Limits(5, 400_000_000, 300_000_000, None)
    expected = DeviceSpec(
        "gpu:1", "gpu", (2, 3), ("openvino",), {"openvino": "GPU.1"}, limits, ("face", "line-*")
    )
    assert device_spec(DeviceConfig.model_validate(told)) == expected
    assert device_spec(DeviceConfig(id="cpu:0")).may_serve("face")
