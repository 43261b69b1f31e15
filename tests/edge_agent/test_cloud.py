"""The cloud application apart from Ray: its configuration, its memory, its deployment files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from ray.exceptions import RayActorError
from ray.serve import Application
from ray.serve.schema import ServeDeploySchema
from rich.console import Console

from benchmarks.ports import free_port
from edge_agent.cloud import application
from edge_agent.cloud.config import ApplicationConfig, CloudDevice, load_cloud_config
from edge_agent.cloud.deployment import Deployment, check_room, connected
from edge_agent.cloud.record import Record, forget_record, read_record, record_file
from edge_agent.cloud.replica import Replica, with_threads
from edge_agent.errors import AgentError
from edge_agent.state_lock import locked
from scheduler.cli import cloud
from scheduler.cli.cloud import view
from scheduler.config.box import load_config
from scheduler.config.problems import ConfigError
from scheduler.errors import LaxityError
from scheduler.tenants import Access
from workers.kernel_files import standing

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "deploy/rayservice.yaml"
DOCKERFILE = ROOT / "deploy/cloud.Dockerfile"


def config(folder: Path, **settings: Any) -> ApplicationConfig:
    file = folder / "cloud.yaml"
    file.write_text(yaml.safe_dump(settings))
    return load_cloud_config(file)


def test_status_says_once_which_models_no_replica_serves() -> None:
    problem = {"device": "cpu:0", "model": "torn", "reason": "no ONNX model"}
    replica = {
        "replica": "a", "targets": [], "models": [], "held": 0, "outcomes": {},
        "problems": [problem],
    }  # fmt: skip
    shown = {
        "name": "w", "status": "RUNNING", "http": "http://h:1", "replica_states": {"RUNNING": 2},
        "replicas": [replica, {**replica, "replica": "b"}], "message": "",
    }  # fmt: skip
    table = io.StringIO()
    Console(file=table, width=100).print(view(shown))
    assert table.getvalue().count("torn: no ONNX model") == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_a_cluster_that_is_gone_is_told_at_once(host: str) -> None:
    address = f"{host}:{free_port()}"
    record = Record("w", "http://h:1", address, False, None, None, True)
    refused = pytest.raises(AgentError, match=f"^no Ray cluster at {address}: Connection refused$")
    with refused, connected(record):
        pass


# -- configuration


@pytest.mark.parametrize(
    ("settings", "has", "lacks"),
    [
        ({}, {"CPU": 2.0}, None),
        (
            {
                "replicas": {"min": 5, "max": 5, "cpus": 0.2},
                "devices": [{"id": "cpu:0", "cpus": 0.4}],
            },
            {"CPU": 3.0},  # not 3.0000000000000004
            None,
        ),
        ({}, {"CPU": 1.0}, "takes 2 CPUs, replicas.min is 1, and the cluster has 1"),
        (
            {"replicas": {"min": 2}},
            {"CPU": 3.0},
            "takes 2 CPUs, replicas.min is 2, and the cluster has 3",
        ),
        ({"devices": [{"id": "gpu:0", "gpus": 0.5}]}, {"CPU": 2.0, "GPU": 1.0}, None),
        (
            {"devices": [{"id": "gpu:0", "gpus": 1}]},
            {"CPU": 2.0},
            "takes 1 GPUs, .* has 0; lower replicas.min, gpus",
        ),
    ],
)
def test_replicas_for_which_there_is_never_room_are_refused(
    tmp_path: Path, settings: dict[str, Any], has: dict[str, float], lacks: str | None
) -> None:
    told = contextlib.nullcontext() if lacks is None else pytest.raises(AgentError, match=lacks)
    with told:
        check_room(config(tmp_path, **settings), has)


def test_the_example_names_every_key_with_its_default() -> None:
    file = ROOT / "configs/cloud.yaml"
    written = load_cloud_config(file)
    defaults = ApplicationConfig.model_validate({}, context={"base": file.parent})
    differs = [name for name in ApplicationConfig.model_fields if name != "devices"]
    assert {name: getattr(written, name) for name in differs} == {
        name: getattr(defaults, name) for name in differs
    }
    text = file.read_text()
    assert [name for name in ApplicationConfig.model_fields if f"{name}:" not in text] == []


def test_replicas_open_no_files_that_only_one_of_them_can_have(tmp_path: Path) -> None:
    replica = config(tmp_path).of_replica(tmp_path / "native.sock")
    assert not replica.journal.enabled
    assert not replica.durable.enabled


def test_a_boxs_configuration_is_another_file() -> None:
    with pytest.raises(ConfigError, match="listen") as told:
        load_cloud_config(ROOT / "configs/edge.yaml")
    assert "looks like a file for `edge_agent --config`" in str(told.value).splitlines()[0]
    with pytest.raises(ConfigError, match="replicas"):
        load_config(ROOT / "configs/cloud.yaml")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"http": "0.0.0.0:8800"},
            "token_file: missing, and other machines can reach 0.0.0.0:8800;",
        ),
        ({"http": "tls://127.0.0.1:8800"}, "HOST:PORT"),
        ({"replicas": {"min": 0}}, "replicas.min"),
        ({"replicas": {"min": 3, "max": 2}}, r"max \(2\) is less than min \(3\)"),
        ({"devices": [{"id": "cpu:0", "cores": [0]}]}, "cpu:0 names cores"),
        ({"devices": []}, "devices"),
        ({"devices": [{"id": "cpu:0"}, {"id": "cpu:0"}]}, "its own id"),
        ({"devices": [{"id": "gpu:0", "gpu": 1}]}, "gpus"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(tmp_path, **settings)


def test_a_mistake_in_the_policy_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text("name: c\nstate_dir: .\npolicy: {name: edf, quantle: 0.9}\n")
    with pytest.raises(ConfigError, match=r"cloud\.yaml:3: policy: .*did you mean 'quantile'"):
        Deployment(load_cloud_config(file), file, locked(tmp_path, "cloud"))


def test_an_address_for_others_is_taken_with_a_token(tmp_path: Path) -> None:
    found = config(tmp_path, http="0.0.0.0:8800", token_file="token")
    assert found.token_file == tmp_path / "token"


def test_a_replica_is_told_what_a_box_would_be(tmp_path: Path) -> None:
    found = config(tmp_path, models="m", policy={"name": "edf"}, limits={"body_mb": 3})
    told = found.of_replica(tmp_path / "s.sock")
    assert told.models == tmp_path / "m"
    assert told.policy.name == "edf"
    assert told.limits.body_mb == 3
    assert [address.path for address in told.listen.all] == [str(tmp_path / "s.sock")]
    assert not told.journal.enabled


def test_a_policy_is_named_as_a_box_names_it(tmp_path: Path) -> None:
    assert config(tmp_path, policy="edf").policy == config(tmp_path, policy={"name": "edf"}).policy
    assert config(tmp_path, policy="./mine.py").policy.name == str(tmp_path / "mine.py")


def test_a_cpu_device_has_a_thread_for_each_of_its_cpus() -> None:
    def threads(**settings: Any) -> Any:
        return with_threads(CloudDevice(**settings)).options.get("threads")

    assert threads(id="cpu:0", cpus=2.5) == 2
    assert threads(id="cpu:0", cpus=0.5) == 1
    assert threads(id="cpu:0", cpus=4, options={"threads": 3}) == 3
    assert threads(id="cpu:0", cpus=4, cores=(0, 1)) is None
    assert threads(id="gpu:0", cpus=4) is None


# -- what `laxity cloud` remembers


def record(pid: int | None, started_ticks: int | None) -> Record:
    return Record("laxity", "http://127.0.0.1:1", "127.0.0.1:2", True, pid, started_ticks, True)


def test_what_is_up_is_remembered_as_long_as_its_process_lives(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    own = standing(os.getpid())
    assert own is not None
    mine = record(os.getpid(), own.started_ticks)
    mine.write(tmp_path)
    assert read_record(tmp_path) == mine
    assert mine.process() == psutil.Process()
    # Its number may have gone to another process by now, which nobody must end for it.
    record(os.getpid(), own.started_ticks - 1).write(tmp_path)
    assert read_record(tmp_path) is None
    record(None, None).write(tmp_path)
    assert read_record(tmp_path) is not None
    forget_record(tmp_path)
    assert read_record(tmp_path) is None


def test_what_is_up_is_found_after_the_clock_has_been_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as a box without a battery for its clock hears the time from others."""
    own = standing(os.getpid())
    assert own is not None
    record(os.getpid(), own.started_ticks).write(tmp_path)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: 1.0)  # it moves with the clock
    assert read_record(tmp_path) is not None


def test_down_does_not_wait_for_ever_for_a_record_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config(tmp_path, state_dir="state")
    lock = locked(tmp_path / "state", "cloud")
    monkeypatch.setattr(cloud, "_BETWEEN_S", 0.0)
    monkeypatch.setattr("edge_agent.ray_settings.set_ray_environment", lambda _: None)
    try:
        with pytest.raises(LaxityError, match=r"or its record in .*state was removed; end `lax"):
            cloud.down(tmp_path / "cloud.yaml")
    finally:
        os.close(lock)
    cloud.down(tmp_path / "cloud.yaml")  # nothing is up


def test_down_minds_no_process_that_ends_by_itself_just_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where somebody has just pressed Ctrl-C at `up`."""
    config(tmp_path, state_dir="state")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as up:
        stands = standing(up.pid)
        assert stands is not None
        found = record(up.pid, stands.started_ticks)
        ending = found.process()
    monkeypatch.setattr("edge_agent.cloud.record.read_record", lambda _: found)
    monkeypatch.setattr(Record, "process", lambda _: ending)
    monkeypatch.setattr("edge_agent.ray_settings.set_ray_environment", lambda _: None)
    cloud.down(tmp_path / "cloud.yaml")
    assert capsys.readouterr() == ("laxity is down\n", "")


UP = """
import sys
from pathlib import Path
from edge_agent.state_lock import is_held
from scheduler.cli import cloud

cloud._serve = lambda config, *_: print(is_held(config.state_dir, "cloud"), "ray" in sys.modules)
cloud.up(Path("cloud.yaml"))
"""


def test_up_locks_its_folder_before_it_loads_ray(tmp_path: Path) -> None:
    """That takes seconds, in which another `up` or a `down` must know of it."""
    config(tmp_path, state_dir="state")
    said = subprocess.check_output([sys.executable, "-c", UP], cwd=tmp_path, text=True)
    assert said == "True False\n"


@pytest.mark.parametrize("text", ["", "\0\0", "[]", "{}"])
def test_a_record_that_a_lost_write_has_left_is_none(tmp_path: Path, text: str) -> None:
    record(None, None).write(tmp_path)
    record_file(tmp_path).write_text(text)
    assert read_record(tmp_path) is None


# -- deployment files


def documents() -> dict[str, Any]:
    return {document["kind"]: document for document in yaml.safe_load_all(MANIFEST.read_text())}


def test_the_manifests_serve_configuration_is_ray_serves(tmp_path: Path) -> None:
    found = documents()
    text = found["RayService"]["spec"]["serveConfigV2"]
    schema = ServeDeploySchema.model_validate(yaml.safe_load(text))
    (app,) = schema.applications
    assert app.import_path == f"{application.__name__}:{application.build.__name__}"
    (told,) = found["ConfigMap"]["data"].items()
    assert app.args == {"config": f"/etc/laxity/{told[0]}"}
    (tmp_path / "cloud.yaml").write_text(told[1])
    built = application.build({"config": tmp_path / "cloud.yaml"})
    assert isinstance(built, Application)
    address = load_cloud_config(tmp_path / "cloud.yaml").http
    assert (schema.http_options.host, schema.http_options.port) == (address.host, address.port)


def test_a_replica_of_the_manifest_fits_a_worker(tmp_path: Path) -> None:
    found = documents()
    (tmp_path / "cloud.yaml").write_text(found["ConfigMap"]["data"]["cloud.yaml"])
    wanted = load_cloud_config(tmp_path / "cloud.yaml")
    (group,) = found["RayService"]["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    cpus = wanted.replicas.cpus + sum(device.cpus for device in wanted.devices)
    assert cpus <= float(container["resources"]["limits"]["cpu"])
    assert wanted.replicas.max <= group["maxReplicas"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert wanted.token_file is not None
    folders = {"/etc/laxity", *map(str, (wanted.models, wanted.state_dir))}
    assert mounted == folders | {str(wanted.token_file.parent)}


def test_image_and_manifest_have_the_same_ray_and_the_image_all_packages() -> None:
    text = DOCKERFILE.read_text()
    (version,) = re.findall(r"^ARG RAY_VERSION=(\S+)$", text, re.MULTILINE)
    assert documents()["RayService"]["spec"]["rayClusterConfig"]["rayVersion"] == version
    copied = set(re.findall(r"^COPY (\S+) /src/\1$", text, re.MULTILINE))
    packages = re.search(r"\[tool\.hatch\.build\.targets\.wheel\]\npackages = (.*)", pyproject())
    assert packages is not None
    assert copied == set(json.loads(packages[1]))


def test_what_the_image_copies_can_be_installed(tmp_path: Path) -> None:
    source = tmp_path / "src"
    for line in re.findall(r"^COPY (.+)$", DOCKERFILE.read_text(), re.MULTILINE):
        *copied, place = line.split()
        for name in copied:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, tmp_path / place.strip("/"))
            else:
                source.mkdir(exist_ok=True)
                shutil.copy(ROOT / name, source)
    build = "from hatchling.build import build_wheel; build_wheel('..')"
    ended = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.glob("laxity-*.whl"))


def pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("scheduler_lives", [True, False])
def test_a_replicas_door_lets_nobody_in_whom_its_scheduler_does_not_know_yet(
    tmp_path: Path, scheduler_lives: bool
) -> None:
    order: list[str] = []

    class Scheduler:
        """Takes a moment."""

        @property
        def reload(self) -> Scheduler:
            return self

        async def remote(self) -> None:
            await asyncio.sleep(0.01)
            order.append("scheduler")
            if not scheduler_lives:
                raise RayActorError

    class Door:
        def reload(self, access: Access) -> None:
            assert access.by_token("a token that is long enough").name == "owner"
            order.append("door")

    file = tmp_path / "cloud.yaml"
    file.write_text(f"models: {tmp_path}\nstate_dir: {tmp_path}\ntoken_file: token\n")
    (tmp_path / "token").touch(0o600)
    (tmp_path / "token").write_text("a token that is long enough")
    replica: Any = Replica.__new__(Replica)
    replica._scheduler, replica._door, replica._run_dir = Scheduler(), Door(), tmp_path / "run"
    replica._ending = threading.Event()
    asyncio.run(replica._reload(load_cloud_config(file)))
    assert order == ["scheduler", "door"]
