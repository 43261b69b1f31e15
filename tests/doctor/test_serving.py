"""The checks of `laxity doctor` for models, cores and doors."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from edge_agent.processors import allowed_cpus
from edge_agent.state_lock import locked
from scheduler.config.box import Config
from scheduler.doctor import serving
from scheduler.doctor.findings import Finding, Surroundings
from scheduler.doctor.serving import check_cores, check_doors, check_models
from tests.workers.onnx_models import relu, save

MODELS = Path(__file__).parents[2] / "configs" / "models"


def around(folder: Path, **settings: object) -> Surroundings:
    given = {"state_dir": "state", "listen": {"native": f"unix://{folder}/own/s"}, **settings}
    config = Config.model_validate(given, context={"base": folder})
    return Surroundings(config, (), file=folder / "edge.yaml")


def levels(found: list[Finding]) -> list[str]:
    return [each.level for each in found]


def test_each_model_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    models = tmp_path / "models"
    (missing,) = check_models(around(tmp_path))
    assert (missing.level, str(models) in missing.message) == ("error", True)
    models.mkdir()
    (none,) = check_models(around(tmp_path))
    assert (none.level, none.message) == ("warning", f"{models}: no model found")
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_text("no model")
    shutil.copytree(MODELS / "digits", models / "digits")
    description = models / "digits" / "model.yaml"
    more = "variants:\n  gone: {file: gone.onnx, precision: fp32}\n"
    description.write_text(description.read_text().replace("variants:\n", more, 1))
    broken, variant, good = check_models(around(tmp_path))
    assert levels([broken, variant, good]) == ["error", "warning", "good"]
    assert broken.message.startswith("broken: ")
    assert variant.message == "digits: variant 'gone': file 'gone.onnx' is absent"
    assert good.message == f"{models}: digits can be read"


def test_a_model_that_is_measured_at_size_1_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "speech"
    save(relu(width="length"), folder / "1" / "model.onnx")
    unsized, _ = check_models(around(tmp_path))
    assert unsized.level == "warning"
    assert unsized.message.endswith("measured with 1 for each: x [*]")
    description = "variants: {one: {file: 1/model.onnx}}\nprofile_shapes: {x: [16000]}\n"
    (folder / "model.yaml").write_text(description)
    (good,) = check_models(around(tmp_path))
    assert good.level == "good"


def test_models_and_the_devices_that_list_them_have_to_match(tmp_path: Path) -> None:
    for name in ("face", "speech", "line-1"):
        save(relu(), tmp_path / "models" / name / "1" / "model.onnx")
    devices = [{"id": "cpu:0", "models": ["face"]}, {"id": "cpu:1", "models": ["line-*", "spech"]}]
    unknown, left, good = check_models(around(tmp_path, devices=devices))
    assert levels([unknown, left, good]) == ["warning", "warning", "good"]
    assert unknown.message == "cpu:1 lists spech under models, and there is no such model"
    assert unknown.remedy == "did you mean 'speech'?"
    assert left.message == "speech may run on no device"
    devices.append({"id": "cpu:2"})
    assert levels(list(check_models(around(tmp_path, devices=devices)))) == ["warning", "good"]


def test_without_a_configuration_no_models_are_missed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (found,) = check_models(Surroundings(Config(), ()))
    assert found.level == "good"


def test_cores_have_to_be_there(tmp_path: Path) -> None:
    assert levels(list(check_cores(around(tmp_path)))) == ["good"]
    own, *_ = allowed_cpus(Path("/"))
    devices = [{"id": "cpu:0", "cores": [own]}, {"id": "cpu:1", "cores": [4095]}]
    good, error = check_cores(around(tmp_path, devices=devices))
    assert levels([good, error]) == ["good", "error"]
    assert error.message.startswith("cpu:1 lists cores that can't be used here: 4095")


def test_doors_that_are_free_are_left_as_they_are(tmp_path: Path) -> None:
    listen = {"native": f"unix://{tmp_path}/own/s", "http": "127.0.0.1:0"}
    assert levels(list(check_doors(around(tmp_path, listen=listen)))) == ["good", "good"]
    assert list(tmp_path.iterdir()) == []


def test_a_door_that_somebody_has_is_named_with_who_it_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.socket(socket.AF_UNIX) as near:
        near.bind(str(tmp_path / "s"))
        near.listen()
        (tmp_path / "a; file").touch()
        listen = {
            "native": [f"unix://{tmp_path}/s", f"unix://{tmp_path}/a; file"],
            "http": f"127.0.0.1:{other.getsockname()[1]}",
        }
        native, file, http = check_doors(around(tmp_path, listen=listen))
    assert levels([native, file, http]) == ["error"] * 3
    assert f"in use by process {os.getpid()} (" in native.message
    assert file.message.endswith(f"{tmp_path}/a; file exists and is not a socket")
    assert f"in use by process {os.getpid()} (" in http.message


@pytest.mark.parametrize(
    ("holder", "level"),
    [
        ((7, "python edge_agent --config edge.yaml"), "good"),
        ((7, "python -m http.server"), "error"),
        (None, "good"),
    ],
)
def test_what_the_box_holds_that_runs_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: tuple[int, str] | None, level: str
) -> None:
    monkeypatch.setattr(serving, "_holder", lambda _: holder)
    with socket.create_server(("127.0.0.1", 0)) as door:
        listen = {"native": f"tcp://127.0.0.1:{door.getsockname()[1]}"}
        lock = locked(tmp_path / "state", "agent")
        try:
            running = list(check_doors(around(tmp_path, listen=listen)))
        finally:
            os.close(lock)
        stopped = list(check_doors(around(tmp_path, listen=listen)))
    assert (levels(running), levels(stopped)) == ([level], ["error"])


def test_a_folder_in_which_no_socket_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (found,) = check_doors(around(tmp_path, listen={"native": f"unix://{tmp_path}/file/run/s"}))
    assert found.level == "error"
    assert f"{tmp_path / 'file'} can't be written by this user" in found.message
