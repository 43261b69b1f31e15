"""The shipped digits model is what its model.yaml says: files, accuracy and a batch that holds."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import yaml
from numpy.typing import NDArray

CONFIGS = Path(__file__).parents[2] / "configs"
FOLDER = CONFIGS / "models" / "digits"
HELD_OUT = CONFIGS / "digits_heldout.npz"
VARIANTS = ("large", "small")


@pytest.fixture(scope="module")
def declared() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "model.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def held_out() -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    with np.load(HELD_OUT) as scans:
        return scans["images"][:, None].astype(np.float32), scans["labels"]


@pytest.fixture(scope="module")
def sessions() -> dict[str, onnxruntime.InferenceSession]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return {
        name: onnxruntime.InferenceSession(
            FOLDER / f"{name}.onnx", options, providers=["CPUExecutionProvider"]
        )
        for name in VARIANTS
    }


def scores(
    session: onnxruntime.InferenceSession, images: NDArray[np.float32]
) -> NDArray[np.float32]:
    (result,) = session.run(["scores"], {"image": images})
    return np.asarray(result)


@pytest.fixture(scope="module")
def accuracy(
    held_out: tuple[NDArray[np.float32], NDArray[np.uint8]],
    sessions: dict[str, onnxruntime.InferenceSession],
) -> dict[str, float]:
    """The share of the held-out scans that each variant reads right."""
    images, labels = held_out
    return {
        name: float((scores(session, images).argmax(axis=1) == labels).mean())
        for name, session in sessions.items()
    }


def test_the_model_travels_with_the_repository(declared: dict[str, Any]) -> None:
    files = [FOLDER / variant["file"] for variant in declared["variants"].values()]
    shipped = [*files, FOLDER / "model.yaml", FOLDER / "LICENSE-data.md", HELD_OUT]
    assert sum(file.stat().st_size for file in shipped) < 2_000_000


def test_variants_are_listed_in_order_of_preference(declared: dict[str, Any]) -> None:
    assert tuple(declared["variants"]) == VARIANTS


@pytest.mark.parametrize("name", VARIANTS)
def test_signature(sessions: dict[str, onnxruntime.InferenceSession], name: str) -> None:
    (image,), (out,) = sessions[name].get_inputs(), sessions[name].get_outputs()
    assert (image.name, image.type, image.shape[1:]) == ("image", "tensor(float)", [1, 8, 8])
    assert (out.name, out.type, out.shape[1:]) == ("scores", "tensor(float)", [10])
    assert isinstance(image.shape[0], str), "the batch axis is fixed"


@pytest.mark.parametrize("name", VARIANTS)
def test_accuracy_is_as_declared(
    declared: dict[str, Any], accuracy: dict[str, float], name: str
) -> None:
    assert accuracy[name] == pytest.approx(declared["variants"][name]["accuracy"], abs=0.002)


def test_large_is_more_accurate_than_small(accuracy: dict[str, float]) -> None:
    assert accuracy["large"] > accuracy["small"]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_batch_is_its_items(
    held_out: tuple[NDArray[np.float32], NDArray[np.uint8]],
    sessions: dict[str, onnxruntime.InferenceSession],
    name: str,
) -> None:
    images = held_out[0][:16]
    together = scores(sessions[name], images)
    alone = np.concatenate([scores(sessions[name], image[None]) for image in images])
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-4)
    np.testing.assert_allclose(together.sum(axis=1), 1, rtol=0, atol=1e-5)
