from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.workers import onnx_models
from tests.workers.conftest import QUICK
from tests.workers.onnx_models import save
from workers.device_host import DeviceHost
from workers.runtimes.base import DeviceSpec


@pytest.fixture
def host(root, add, tmp_path):
    """Serves `first`."""
    add("first", onnx_models.relu())
    host = DeviceHost(DeviceSpec("cpu:0", "cpu"), root, tmp_path / "state", 2, QUICK)
    list(host.prepare())
    yield host
    host.close()


def added(host: DeviceHost) -> list[str]:
    return [offer.model for offer in host.prepare_additions()]


def told(host: DeviceHost) -> list[tuple[str, str]]:
    return [(problem.model, problem.reason) for problem in host.repository.problems]


def test_a_model_is_served_once_it_has_looked_the_same_twice(host, root, add):
    assert [host.has_additions() for _ in range(2)] == [False, False]
    before = host.repository.models["first"]
    file = add("second", onnx_models.relu())
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert not host.has_additions()
    file.write_bytes(whole)
    assert [host.has_additions() for _ in range(2)] == [False, True]
    steps: list[tuple[int, int]] = []

    offers = list(host.prepare_additions(lambda done, total, _: steps.append((done, total))))

    assert [(offer.model, offer.variant) for offer in offers] == [("second", "1")]
    assert steps[-1][0] == steps[-1][1] > 0
    (result,) = host.run("second", "1", [{"x": np.array([-1, 0, 2], np.float32)}])
    assert isinstance(result, dict)
    assert result["y"].tolist() == [0, 0, 2]
    assert host.repository.models["first"] is before
    assert [host.has_additions() for _ in range(3)] == [False, False, False]
    assert host.measure_again("second", "1") is None or host.measure_again("first", "1") is None
    assert sorted({m.model for m in host.measured()}) == ["first", "second"]


def test_while_one_is_copied_another_is_read(host, add):
    add("whole", onnx_models.relu())
    host.has_additions()
    part = add("part", onnx_models.relu())
    content = part.read_bytes()
    part.write_bytes(content[:20])
    assert host.has_additions()
    assert added(host) == ["whole"]
    assert told(host) == []
    part.write_bytes(content)
    assert [host.has_additions() for _ in range(2)] == [False, True]
    assert added(host) == ["part"]


def test_a_model_that_had_a_problem_is_read_again_once_it_has_changed(host, root, add):
    file = add("broken", onnx_models.relu(), yaml="variants: {only: {file: absent.onnx}}")
    assert [host.has_additions() for _ in range(2)] == [False, True]
    assert added(host) == []
    assert told(host) == [("broken", "variant 'only': file 'absent.onnx' is absent")]
    assert [host.has_additions() for _ in range(2)] == [False, False]
    file.rename(file.with_name("absent.onnx"))
    assert [host.has_additions() for _ in range(2)] == [False, True]
    assert added(host) == ["broken"]
    assert told(host) == []


def test_a_file_outside_a_model_folder_is_told_until_it_is_moved(host, root, add):
    loose = root / "face.onnx"
    save(onnx_models.relu(), loose)
    assert [host.has_additions() for _ in range(2)] == [False, True]
    assert added(host) == []
    assert [model for model, _ in told(host)] == ["face"]
    home = root / "face/1/model.onnx"
    home.parent.mkdir(parents=True)
    loose.rename(home)
    assert [host.has_additions() for _ in range(2)] == [False, True]
    assert added(host) == ["face"]
    assert told(host) == []


def test_a_file_beside_the_folder_of_its_name_is_told_once(host, root, add):
    save(onnx_models.relu(), root / "first.onnx")
    for name in ("second", "third"):
        add(name, onnx_models.relu())
        assert [host.has_additions() for _ in range(2)] == [False, True]
        assert added(host) == [name]
        assert [model for model, _ in told(host)] == ["first"]


def test_what_is_served_stays_whatever_becomes_of_its_files(host, root, add):
    shutil.rmtree(root / "first")
    assert [host.has_additions() for _ in range(3)] == [False, False, False]
    root.rename(root.with_name("away"))
    assert [host.has_additions() for _ in range(3)] == [False, False, False]
    assert added(host) == []
    root.with_name("away").rename(root)
    add("second", onnx_models.relu())
    assert [host.has_additions() for _ in range(2)] == [False, True]
    root.rename(root.with_name("away"))
    assert added(host) == []
    root.with_name("away").rename(root)
    assert host.has_additions()
    assert added(host) == ["second"]
    (result,) = host.run("first", "1", [{"x": np.array([-1, 0, 2], np.float32)}])
    assert isinstance(result, dict)


def test_hidden_entries_are_not_looked_at(host, root, add):
    add(".copying", onnx_models.relu())
    assert [host.has_additions() for _ in range(3)] == [False, False, False]
