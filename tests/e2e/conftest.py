from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import pytest

from tests.e2e.running_agent import ModelsNamed
from tests.workers.onnx_models import gather, relu, save, slow, softmax, two_by_two, words


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of small models, one of them slow and without batches."""
    root = tmp_path_factory.mktemp("models")
    save(relu(), root / "relu/1/model.onnx")
    save(relu(width=9_000), root / "wide/1/model.onnx")
    save(two_by_two(), root / "pair/1/model.onnx")
    save(gather(), root / "gather/model.onnx")
    save(words(), root / "words/1/model.onnx")
    (root / "gather/model.yaml").write_text(
        "variants: {only: {file: model.onnx}}\nruntimes: [onnxruntime]\n"
    )
    save(softmax(), root / "padded/model.onnx")
    (root / "padded/model.yaml").write_text(
        "variants: {only: {file: model.onnx}}\n"
        "inputs: {x: {pad: {to: [4, 16]}}, mask: {pad: {to: [4, 16]}}}\n"
        "outputs: {y: {as_long_as: x}}\n"
    )
    save(slow(), root / "slow/model.onnx")
    (root / "slow/model.yaml").write_text("variants: {only: {file: model.onnx}}\nmax_batch: 1\n")
    digits = Path(str(resources.files("configs"))) / "models/digits/small.onnx"
    (root / "digits").mkdir()
    shutil.copy(digits, root / "digits")
    (root / "digits/model.yaml").write_text(
        "variants: {small: {file: small.onnx}}\nruntimes: [onnxruntime]\nmax_batch: 4\n"
    )
    (root / "broken/1").mkdir(parents=True)
    (root / "broken/1/model.onnx").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    return root


@pytest.fixture(scope="session")
def models_named(models: Path, tmp_path_factory: pytest.TempPathFactory) -> ModelsNamed:
    """A repository of some of them; an agent measures all that it finds when it first starts."""

    def chosen(*names: str) -> Path:
        root = tmp_path_factory.mktemp("models")
        for name in names:
            (root / name).symlink_to(models / name)
        return root

    return chosen
