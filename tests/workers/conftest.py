from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from tests.workers.onnx_models import save
from workers.device_host import DeviceHost
from workers.model import Model
from workers.profiling import Effort
from workers.repository import load_repository
from workers.runtimes.base import DeviceSpec

AddModel = Callable[..., Path]
StartOn = Callable[..., DeviceHost]

QUICK = Effort(budget_ns=0, min_repeats=2, max_repeats=2, max_warm_ups=4)
SLOW = replace(QUICK, slow_ns=0)
"""Takes every model for a slow one."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty repository."""
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def start_on(root: Path, tmp_path: Path) -> Iterator[StartOn]:
    """Starts the hosts of devices, which are closed at the end."""
    hosts = []

    def start_host(device: DeviceSpec, max_batch: int = 4, effort: Effort = QUICK) -> DeviceHost:
        host = DeviceHost(device, root, tmp_path / "state", max_batch, effort)
        hosts.append(host)
        return host

    yield start_host
    for host in hosts:
        host.close()


@pytest.fixture
def add(root: Path) -> AddModel:
    """Adds a model of one variant to the repository, with a `model.yaml` if given its text."""

    def add_model(name: str, made: onnx.ModelProto, yaml: str | None = None) -> Path:
        file = root / name / ("model.onnx" if yaml is not None else "1/model.onnx")
        save(made, file)
        if yaml is not None:
            (root / name / "model.yaml").write_text(yaml)
        return file

    return add_model


@pytest.fixture
def load(root: Path) -> Callable[[str], Model]:
    """Loads the repository and picks a model, which must be without problems."""

    def load_model(name: str) -> Model:
        repository = load_repository(root)
        assert repository.problems == ()
        return repository.models[name]

    return load_model
