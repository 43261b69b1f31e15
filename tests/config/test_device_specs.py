"""What a worker is told of its device."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.config.box import load_config
from scheduler.config.devices import DeviceConfig
from scheduler.config.problems import ConfigError
from scheduler.device_specs import check_devices, check_here, device_spec
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


def test_every_mistake_in_the_devices_is_told_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(
        "devices:\n"
        "  - {id: 'cpu:0', options: {treads: 2}}\n"
        "  - {id: 'cpu:1', options: {threads: 0}}\n"
        "  - {id: 'cpu:2', options: {threads: 1}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        check_devices(load_config(file), file)
    said = str(caught.value).splitlines()
    assert len(said) == 2
    assert f"{file}:2: " in said[0]
    assert "'treads'" in said[0]
    assert f"{file}:3: " in said[1]
    assert "'threads'" in said[1]


def test_cores_that_this_machine_lacks_are_a_mistake_only_where_it_is_to_run(
    tmp_path: Path,
) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text("devices:\n  - {id: 'cpu:0', cores: [0, 7]}\n")
    config = load_config(file)
    check_devices(config, file)
    check_here(config, file, tmp_path)  # nothing is known of this machine
    (tmp_path / "sys/devices/system/cpu/cpu0").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"edge.yaml:2: .* does not have: \[7\]"):
        check_here(config, file, tmp_path)
    (tmp_path / "sys/devices/system/cpu/cpu7").mkdir()
    check_here(config, file, tmp_path)
