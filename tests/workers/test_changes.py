from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import openvino
import pytest

from tests.workers import onnx_models
from tests.workers.conftest import QUICK
from tests.workers.onnx_models import save
from workers import trials
from workers.device_host import DeviceHost
from workers.model import Model, Variant
from workers.preparing import Progress, ignore_progress
from workers.profile_store import Profile
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceSpec, ModelLoadError, Tell
from workers.runtimes.onnxruntime import OnnxRuntime
from workers.runtimes.openvino import OpenVino

NOT_HERE = "runtimes: [tensorrt]\nvariants: {'1': {file: 1/model.onnx}}"
"""A `model.yaml` of a model that no CPU serves."""


@pytest.fixture
def host(root, add, tmp_path):
    """Serves `first`."""
    add("first", onnx_models.relu())
    host = DeviceHost(DeviceSpec("cpu:0", "cpu"), root, tmp_path / "state", 2, QUICK)
    list(host.prepare())
    yield host
    host.close()


def added(host: DeviceHost, progress: Progress = ignore_progress) -> list[str]:
    """Serves what has changed; returns the new offers as `model/variant`."""
    told = []
    for ready in host.prepare_changes(progress):
        offers, _ = host.adopt(ready)
        told += [f"{offer.model}/{offer.variant}" for offer in offers]
    return told


def looks(host: DeviceHost) -> list[bool]:
    """What two looks tell: something new needs both."""
    return [host.has_changes() for _ in range(2)]


def run(host: DeviceHost, model: str = "first", variant: str = "1") -> list[float]:
    """The answer to [-1, 0, 2]."""
    (result,) = host.run(model, variant, [{"x": np.array([-1, 0, 2], np.float32)}])
    assert isinstance(result, dict)
    answer: list[float] = result["y"].tolist()
    return answer


def told(host: DeviceHost) -> list[tuple[str, str]]:
    return [(problem.model, problem.reason) for problem in host.repository.problems]


def test_a_model_is_served_once_it_has_looked_the_same_twice(host, root, add):
    assert looks(host) == [False, False]
    before = host.repository.models["first"]
    file = add("second", onnx_models.relu())
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert not host.has_changes()
    file.write_bytes(whole)
    assert looks(host) == [False, True]
    steps: list[tuple[int, int]] = []

    assert added(host, lambda done, total, _: steps.append((done, total))) == ["second/1"]

    assert steps[-1][0] == steps[-1][1] > 0
    assert run(host, "second") == [0, 0, 2]
    assert host.repository.models["first"] is before
    assert [host.has_changes() for _ in range(3)] == [False, False, False]
    assert host.measure_again("second", "1") is None or host.measure_again("first", "1") is None
    assert sorted({m.model for m in host.measured()}) == ["first", "second"]


def test_while_one_is_copied_another_is_read(host, add):
    add("whole", onnx_models.relu())
    host.has_changes()
    part = add("part", onnx_models.relu())
    content = part.read_bytes()
    part.write_bytes(content[:20])
    assert host.has_changes()
    assert added(host) == ["whole/1"]
    assert told(host) == []
    part.write_bytes(content)
    assert looks(host) == [False, True]
    assert added(host) == ["part/1"]


def test_a_model_that_had_a_problem_is_read_again_once_it_has_changed(host, root, add):
    file = add("broken", onnx_models.relu(), yaml="variants: {only: {file: absent.onnx}}")
    assert looks(host) == [False, True]
    assert added(host) == []
    assert told(host) == [("broken", "variant 'only': file 'absent.onnx' is absent")]
    assert looks(host) == [False, False]
    file.rename(file.with_name("absent.onnx"))
    assert looks(host) == [False, True]
    assert added(host) == ["broken/only"]
    assert told(host) == []


def test_a_file_outside_a_model_folder_is_told_until_it_is_moved(host, root, add):
    loose = root / "face.onnx"
    save(onnx_models.relu(), loose)
    assert looks(host) == [False, True]
    assert added(host) == []
    assert [model for model, _ in told(host)] == ["face"]
    home = root / "face/1/model.onnx"
    home.parent.mkdir(parents=True)
    loose.rename(home)
    assert looks(host) == [False, True]
    assert added(host) == ["face/1"]
    assert told(host) == []


def test_a_file_beside_the_folder_of_its_name_is_told_once(host, root, add):
    save(onnx_models.relu(), root / "first.onnx")
    for name in ("second", "third"):
        add(name, onnx_models.relu())
        assert looks(host) == [False, True]
        assert added(host) == [f"{name}/1"]
        assert [model for model, _ in told(host)] == ["first"]


def test_what_is_served_stays_when_its_files_go(host, root, add):
    shutil.rmtree(root / "first")
    assert looks(host) == [False, True]
    assert added(host) == []
    gone = ("first", "its folder is gone; it is served as its files were before")
    assert told(host) == [gone]
    assert looks(host) == [False, False]
    root.rename(root.with_name("away"))
    assert looks(host) == [False, False]
    assert added(host) == []
    root.with_name("away").rename(root)
    add("second", onnx_models.relu())
    assert looks(host) == [False, True]
    root.rename(root.with_name("away"))
    assert added(host) == []
    root.with_name("away").rename(root)
    assert host.has_changes()
    assert added(host) == ["second/1"]
    assert told(host) == [gone]
    assert run(host) == [0, 0, 2]
    add("first", onnx_models.relu())
    assert looks(host) == [False, True]
    assert added(host) == []
    assert told(host) == []


def test_a_replaced_model_is_served_once_it_is_ready(host, add):
    add("first", onnx_models.times(3))
    assert looks(host) == [False, True]
    changes = host.prepare_changes()
    ready = next(changes)
    assert run(host) == [0, 0, 2]
    before = host.repository.models["first"]

    offers, gone = host.adopt(ready)

    assert list(changes) == []
    assert run(host) == [-3, 0, 6]
    assert [(offer.model, offer.variant) for offer in offers] == [("first", "1")]
    assert gone == []
    assert host.repository.models["first"].digest != before.digest
    assert told(host) == []
    assert looks(host) == [False, False]
    assert host.measure_again("first", "unknown") is None


def test_what_was_compiled_of_replaced_files_stays_until_they_are_replaced_again(
    host, add, tmp_path
):
    def compiled() -> set[str]:
        return {path.name for path in (tmp_path / "state/compiled").iterdir() if path.is_dir()}

    of = [compiled()]
    for factor in (2.0, 3.0, 4.0):
        add("first", onnx_models.times(factor))
        assert looks(host) == [False, True]
        assert added(host) == ["first/1"]
        assert run(host) == [-factor, 0, 2 * factor]
        of.append(compiled() - set().union(*of))
        assert compiled() == of[-2] | of[-1]
        assert of[-1]
    add("first", onnx_models.gather())
    assert looks(host) == [False, True]
    assert added(host) == []  # it has other inputs
    assert compiled() == of[-2] | of[-1]


def test_a_file_in_the_place_of_a_model_is_told(host, root):
    shutil.rmtree(root / "first")
    (root / "first").write_text("model/1.onnx")
    assert looks(host) == [False, True]
    assert added(host) == []
    gone = ("first", "its folder is gone; it is served as its files were before")
    assert told(host) == [gone]
    (root / "first").unlink()
    assert looks(host) == [False, True]
    assert added(host) == []
    assert told(host) == [gone]


def test_a_model_is_replaced_beside_a_link_to_nowhere(host, root, add):
    (root / "first/notes").symlink_to("nowhere")
    assert looks(host) == [False, True]
    assert added(host) == []
    add("first", onnx_models.times(3))
    assert looks(host) == [False, True]
    assert added(host) == ["first/1"]
    (root / "first/notes").unlink()
    (root / "first/notes").symlink_to("elsewhere")
    assert looks(host) == [False, True]


def test_files_of_the_same_size_and_time_are_noticed(host, root):
    """Copies may keep the time, and some stores have one time for all that they hold."""
    file = root / "first/1/model.onnx"
    former, found = file.read_bytes(), file.stat()
    file.write_bytes(former.replace(b"Relu", b"Tanh"))
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert looks(host) == [False, True]
    assert added(host) == ["first/1"]
    assert run(host)[0] < 0


def test_files_that_were_only_touched_replace_nothing(host, root):
    before = host.repository.models["first"]
    os.utime(root / "first/1/model.onnx", ns=(5, 5))
    assert looks(host) == [False, True]
    assert added(host) == []
    assert host.repository.models["first"] is before


def test_a_device_takes_note_of_models_that_it_does_not_list(root, add, tmp_path):
    add("first", onnx_models.relu())
    spec = DeviceSpec("cpu:0", "cpu", models=("first",))
    host = DeviceHost(spec, root, tmp_path / "state", 2, QUICK)
    list(host.prepare())
    for width in (3, 4):
        add("second", onnx_models.relu(width=width))
        assert looks(host) == [False, True]
        assert added(host) == []
        assert host.repository.models["second"].signature.inputs[0].shape == (width,)
        assert (told(host), host.problems) == ([], [])
    host.close()


def test_a_new_version_takes_the_place_of_the_one_before(host, root):
    save(onnx_models.times(3), root / "first/2/model.onnx")
    assert looks(host) == [False, True]
    ((offers, gone),) = [host.adopt(ready) for ready in host.prepare_changes()]
    assert [(offer.model, offer.variant) for offer in offers] == [("first", "2")]
    assert gone == [("first", "1")]
    assert run(host, variant="2") == [-3, 0, 6]
    with pytest.raises(KeyError, match="does not serve first/1; it serves first/2"):
        run(host, variant="1")
    assert host.measure_again("first", "1") is None
    assert list(host.typical_ns(0.01)) == ["first/2"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda folder: (folder / "1/model.onnx").write_bytes(b""),
            "variant '1': file 'model.onnx' is empty",
        ),
        (
            lambda folder: save(onnx_models.relu(width=4), folder / "1/model.onnx"),
            "its inputs are x float32[4], those of what is served x float32[3]; its files wait "
            "for the agent's restart",
        ),
        (
            lambda folder: (folder / "model.yaml").write_text(NOT_HERE),
            "variant '1': no runtime for .onnx: cpu:0 has onnxruntime, openvino, model.yaml allows "
            "tensorrt",
        ),
    ],
)
def test_what_cannot_be_served_replaces_nothing_that_is(host, root, change, reason):
    folder, problems = root / "first", list(host.problems)
    shutil.copytree(folder, root.with_name("good"))
    change(folder)
    assert looks(host) == [False, True]
    assert added(host) == []
    assert told(host) == [("first", f"{reason}; it is served as its files were before")]
    assert run(host) == [0, 0, 2]
    assert looks(host) == [False, False]

    shutil.rmtree(folder)
    shutil.copytree(root.with_name("good"), folder)

    assert looks(host) == [False, True]
    assert added(host) == []
    assert told(host) == []
    assert host.problems == problems
    assert run(host) == [0, 0, 2]


def test_what_nothing_could_serve_may_be_replaced_by_something_different(host, root, add):
    add("second", onnx_models.relu())
    (root / "second/model.yaml").write_text(NOT_HERE)
    assert looks(host) == [False, True]
    assert added(host) == []
    assert [problem.model for problem in host.problems] == ["second"]
    (root / "second/model.yaml").unlink()
    add("second", onnx_models.times(3, width=5))
    assert looks(host) == [False, True]
    assert added(host) == ["second/1"]
    assert host.problems == []


def test_of_a_replaced_model_only_the_variants_that_can_be_served_are(host, root, add):
    yaml = "variants: {good: {file: model.onnx}, bad: {file: bad.onnx}}"
    add("second", onnx_models.times(2), yaml)
    save(onnx_models.times(2), root / "second/bad.onnx")
    assert looks(host) == [False, True]
    assert added(host) == ["second/good", "second/bad"]
    (root / "second/bad.onnx").write_bytes(b"")
    assert looks(host) == [False, True]
    assert added(host) == ["second/good"]
    assert told(host) == [("second", "variant 'bad': file 'bad.onnx' is empty")]
    with pytest.raises(KeyError, match="does not serve second/bad"):
        run(host, "second", "bad")


@pytest.mark.parametrize("variant", ["a", "b"])
def test_files_that_change_once_more_while_they_are_prepared_replace_nothing_yet(
    host, root, add, variant
):
    add("first", onnx_models.relu(), "variants: {a: {file: a.onnx}, b: {file: b.onnx}}")
    for name in "ab":
        save(onnx_models.times(2), root / f"first/{name}.onnx")
    assert looks(host) == [False, True]
    assert added(host) == ["first/a", "first/b"]
    save(onnx_models.times(3), root / "first/a.onnx")
    assert looks(host) == [False, True]

    def change_at_last(done: int, total: int, _: str) -> None:
        if variant == "b" or done == total:
            save(onnx_models.times(3), root / f"first/{variant}.onnx")

    assert added(host, change_at_last) == []
    ((model, reason),) = told(host)
    assert model == "first"
    assert reason.endswith("not served yet; it is served as its files were before")
    assert [run(host, variant=name) for name in "ab"] == [[-2, 0, 4], [-2, 0, 4]]
    save(onnx_models.times(3), root / "first/b.onnx")
    assert looks(host) == [False, True]
    assert added(host) == ["first/a", "first/b"]
    assert (told(host), host.problems) == ([], [])
    assert [run(host, variant=name) for name in "ab"] == [[-3, 0, 6], [-3, 0, 6]]


class Compiling(OnnxRuntime):
    """A runtime that must compile first."""

    def is_built(self, cache_dir: Path) -> bool:
        return (cache_dir / "engine").exists()

    def build(
        self, model: Model, variant: Variant, device: DeviceSpec, cache_dir: Path, tell: Tell
    ) -> None:
        if model.max_batch == 7:
            raise ModelLoadError("no engine of 7")
        (cache_dir / "engine").write_text("compiled")


def test_what_must_be_compiled_is_replaced_once_it_is(root, add, tmp_path, monkeypatch):
    monkeypatch.setitem(RUNTIMES, "onnxruntime", Compiling)
    yaml = "variants: {a: {file: model.onnx}, b: {file: model.onnx}}"
    add("first", onnx_models.relu(), yaml)
    spec = DeviceSpec("cpu:0", "cpu", runtimes=("onnxruntime",))
    host = DeviceHost(spec, root, tmp_path / "state", 2, QUICK)
    assert [offer.variant for offer in host.prepare()] == ["a", "b"]
    add("first", onnx_models.times(3), yaml)
    assert looks(host) == [False, True]

    changes = [host.adopt(ready) for ready in host.prepare_changes()]

    assert [([o.variant for o in offers], gone) for offers, gone in changes] == [
        (["a", "b"], []),
    ]
    assert [run(host, variant=variant) for variant in "ab"] == [[-3, 0, 6], [-3, 0, 6]]
    assert (told(host), host.problems) == ([], [])
    add("first", onnx_models.times(4), f"max_batch: 7\n{yaml}")
    assert looks(host) == [False, True]
    assert added(host) == []
    (problem,) = told(host)
    assert "variant 'a': onnxruntime: failed to build: no engine of 7" in problem[1]
    assert problem[1].endswith("it is served as its files were before")
    assert host.problems == []
    assert [run(host, variant=variant) for variant in "ab"] == [[-3, 0, 6], [-3, 0, 6]]
    host.close()


def test_a_variant_that_cannot_be_compiled_holds_up_no_other(root, add, tmp_path, monkeypatch):
    """Its runtime was the only one for it, so it was waited for."""

    class OnlyXml(OpenVino):
        suffixes = frozenset({".xml"})

    monkeypatch.setitem(RUNTIMES, "onnxruntime", Compiling)
    monkeypatch.setitem(RUNTIMES, "openvino", OnlyXml)
    add("first", onnx_models.relu(), "variants: {a: {file: model.onnx}}")
    host = DeviceHost(DeviceSpec("cpu:0", "cpu"), root, tmp_path / "state", 2, QUICK)
    assert [offer.variant for offer in host.prepare()] == ["a"]
    yaml = "max_batch: 7\nvariants: {a: {file: model.onnx}, b: {file: b.xml}}"
    file = add("first", onnx_models.times(3), yaml)
    openvino.save_model(openvino.Core().read_model(file), root / "first/b.xml")
    assert looks(host) == [False, True]

    (((offer,), gone),) = [host.adopt(ready) for ready in host.prepare_changes()]

    assert (offer.variant, gone) == ("b", [("first", "a")])
    assert told(host) == []
    assert [problem.told() for problem in host.problems] == [
        ("first/a", "onnxruntime: failed to build: no engine of 7")
    ]
    assert run(host, variant="b") == [-3, 0, 6]
    host.close()


def test_of_a_replaced_model_what_is_compiled_later_takes_over(root, add, tmp_path, monkeypatch):
    def prefer_compiled(profiles: Mapping[str, Profile]) -> str | None:
        return max(profiles, key=["openvino", "onnxruntime"].index, default=None)

    monkeypatch.setitem(RUNTIMES, "onnxruntime", Compiling)
    monkeypatch.setattr(trials, "best_runtime", prefer_compiled)
    add("first", onnx_models.relu())
    host = DeviceHost(DeviceSpec("cpu:0", "cpu"), root, tmp_path / "state", 2, QUICK)
    assert [offer.runtime for offer in host.prepare()] == ["openvino", "onnxruntime"]
    add("first", onnx_models.times(3))
    assert looks(host) == [False, True]
    changes = [host.adopt(ready) for ready in host.prepare_changes()]
    assert [[offer.runtime for offer in offers] for offers, _ in changes] == [
        ["openvino"],
        ["onnxruntime"],
    ]
    assert run(host) == [-3, 0, 6]
    host.close()


def test_the_settings_of_a_model_are_read_again_with_it(host, root, add):
    add("second", onnx_models.relu(), "variants: {only: {file: model.onnx}}")
    assert looks(host) == [False, True]
    assert added(host) == ["second/only"]
    yaml = "variants: {only: {file: model.onnx, accuracy: 0.9}}\nmax_batch: 1"
    (root / "second/model.yaml").write_text(yaml)
    assert looks(host) == [False, True]
    (((offer,), _),) = [host.adopt(ready) for ready in host.prepare_changes()]
    assert (offer.accuracy, offer.max_batch) == (0.9, 1)


def test_a_version_behind_a_link_is_noticed(host, root):
    version = root / "first/1"
    elsewhere = root.with_name("elsewhere")
    save(onnx_models.times(3), elsewhere / "model.onnx")
    version.rename(root.with_name("former"))
    version.symlink_to(elsewhere)
    assert looks(host) == [False, True]
    assert added(host) == ["first/1"]
    assert run(host) == [-3, 0, 6]
    third = root.with_name("third")
    save(onnx_models.times(4), third / "model.onnx")
    version.unlink()
    version.symlink_to(third)
    assert looks(host) == [False, True]
    assert added(host) == ["first/1"]
    assert run(host) == [-4, 0, 8]


def test_hidden_entries_are_not_looked_at(host, root, add):
    add(".copying", onnx_models.relu())
    assert [host.has_changes() for _ in range(3)] == [False, False, False]
