"""Measuring devices without a box."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.measuring import measure
from scheduler.config.box import Config
from scheduler.config.devices import DeviceConfig
from tests.workers.onnx_models import save, slow
from workers.crash_guard import ATTEMPTS


def test_what_is_interrupted_did_not_die_of_what_it_was_trying(tmp_path: Path) -> None:
    save(slow(), tmp_path / "models/slow/1/model.onnx")
    config = Config(models=tmp_path / "models", state_dir=tmp_path / "state")
    attempts = config.state_dir / ATTEMPTS

    def interrupt(device: str, done: int, total: int, text: str) -> None:
        if text.endswith("batch 1"):
            assert list(attempts.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(measure(config, [DeviceConfig(id="cpu:0")], keep=True, tell=interrupt))
    assert list(attempts.iterdir()) == []
