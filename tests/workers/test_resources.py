"""Limits of a device's process, and models that leave memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scheduler.core.offers import Offer
from tests.workers import onnx_models
from tests.workers.conftest import QUICK
from workers.control_group import ControlGroupError, hand_on_controllers, join_group
from workers.device_host import DeviceHost
from workers.memory import available_bytes
from workers.runtimes.base import DeviceSpec, Limits, RunError
from workers.trials import RuntimeTrials

DENSE_BYTES = 128 * 128 * 4


@pytest.fixture
def start(root, tmp_path):
    hosts = []
    offers: list[Offer] = []

    def start_host(**limits) -> tuple[DeviceHost, list[Offer]]:
        spec = DeviceSpec("cpu:0", "cpu", limits=Limits(**limits))
        state = tmp_path / "state"
        host = DeviceHost(spec, root, state, 2, QUICK)
        host.tell_offer = offers.append
        hosts.append(host)
        return host, offers

    yield start_host
    for host in hosts:
        host.close()


def dense(add, *names: str, residency: str = "loaded") -> None:
    yaml = f"residency: {residency}\nvariants: {{a: {{file: model.onnx}}}}"
    for seed, name in enumerate(names):
        add(name, onnx_models.dense(seed=seed), yaml)


def ask(host: DeviceHost, name: str) -> None:
    (result,) = host.run(name, "a", [{"x": np.ones(128, np.float32)}])
    assert isinstance(result, dict)
    assert np.isfinite(result["y"]).all()


def p50(offer: Offer) -> int:
    return offer.latency_ns[1][len(offer.latency_ns[1]) // 2]


def test_the_least_recently_used_leaves_and_is_loaded_when_asked_for(start, add):
    dense(add, "a", "b", "c")
    host, told = start(model_bytes=2 * DENSE_BYTES + 4000)
    warm = {offer.model: offer for offer in host.prepare()}

    # The third one's coming drove out the first.
    assert [offer.model for offer in told] == ["a"]
    assert p50(told[0]) > p50(warm["a"])
    told.clear()
    ask(host, "b")
    assert told == []

    ask(host, "a")

    assert [offer.model for offer in told] == ["c", "a"]
    assert told[1] == warm["a"]
    assert p50(told[0]) - p50(warm["c"]) > 0
    ask(host, "c")
    assert [offer.model for offer in told[2:]] == ["b", "c"]


def test_a_new_version_takes_the_room_of_the_one_before(start, add, root):
    dense(add, "a")
    onnx_models.save(onnx_models.dense(seed=1), root / "b/1/model.onnx")
    host, told = start(model_bytes=2 * DENSE_BYTES + 4000)
    list(host.prepare())
    onnx_models.save(onnx_models.dense(seed=2), root / "b/2/model.onnx")
    assert [host.has_changes() for _ in range(2)] == [False, True]

    ((offers, gone),) = [host.adopt(ready) for ready in host.prepare_changes()]

    assert ([offer.variant for offer in offers], gone) == (["2"], [("b", "1")])
    assert told == []
    ask(host, "a")
    assert told == []


def test_there_is_room_for_a_model_before_it_is_loaded(start, add, monkeypatch):
    dense(add, "a", "b")
    host, _ = start(model_bytes=DENSE_BYTES + 4000)
    list(host.prepare())
    reload = RuntimeTrials.reload
    loaded: list[bool] = []

    def look_and_reload(*arguments):
        loaded.append(host._served.residency.is_loaded(("b", "a")))
        return reload(*arguments)

    monkeypatch.setattr(RuntimeTrials, "reload", look_and_reload)
    ask(host, "a")

    assert loaded == [False]


def test_a_model_whose_file_was_exchanged_does_not_come_back_as_what_it_was(start, add, root):
    dense(add, "a", "b")
    host, _ = start(model_bytes=DENSE_BYTES + 4000)
    list(host.prepare())
    (file,) = (root / "a").rglob("*.onnx")
    whole = file.read_bytes()
    file.write_bytes((root / "b" / file.relative_to(root / "a")).read_bytes())

    (told,) = host.run("a", "a", [{"x": np.ones(128, np.float32)}])

    assert isinstance(told, RunError)
    assert "could not be loaded again: its file was replaced, and is not served yet" in str(told)

    file.write_bytes(whole)
    ask(host, "a")


def test_a_pinned_model_stays(start, add):
    dense(add, "a", residency="pinned")
    dense(add, "b", "c")
    host, told = start(model_bytes=2 * DENSE_BYTES + 4000)
    list(host.prepare())

    assert [offer.model for offer in told] == ["b"]
    ask(host, "b")
    assert [offer.model for offer in told] == ["b", "c", "b"]


def test_a_lazy_model_is_loaded_at_its_first_request(start, add):
    dense(add, "a", residency="lazy")
    host, told = start()
    (cold,) = host.prepare()

    ask(host, "a")

    (warm,) = told[-1:]
    assert (cold.model, warm.model) == ("a", "a")
    assert p50(cold) > p50(warm)


def test_a_model_that_cannot_be_loaded_again_fails_its_requests_alone(start, add):
    dense(add, "a", residency="lazy")
    dense(add, "b")
    host, _ = start()
    list(host.prepare())
    host.repository.models["a"].variants[0].path.write_bytes(b"gone bad")
    for folder in host._trials._around.cache._root.iterdir():
        if folder.is_dir():
            for file in folder.iterdir():
                file.unlink()

    results = host.run("a", "a", [{"x": np.ones(128, np.float32)}] * 2)

    assert all(isinstance(result, RunError) for result in results)
    said, _, why = str(results[0]).partition(" again: ")
    assert said == "a/a could not be loaded"
    assert why.startswith(("onnxruntime: ", "openvino: "))
    ask(host, "b")


LIMITED = """
import os, resource, sys
from pathlib import Path
from workers.resources import limit_process
from workers.runtimes.base import DeviceSpec, Limits

said = limit_process(DeviceSpec("cpu:0", "cpu", limits=Limits(7, 900_000_000)), Path(sys.argv[1]))
print(os.nice(0), resource.getrlimit(resource.RLIMIT_DATA)[0], "; ".join(said))
"""


def test_without_control_groups_the_data_segment_is_limited(tmp_path):
    command = [sys.executable, "-c", LIMITED, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    nice, limit, said = done.stdout.split(maxsplit=2)
    assert int(nice) == max(7, os.nice(0))
    assert int(limit) == 900_000_000
    assert said.startswith("nice 7; 900 MB of memory, by RLIMIT_DATA (no control group: ")
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != 900_000_000


@pytest.fixture
def delegated(tmp_path):
    """A control group handed to the service, as cgroup-v2.rst has it under systemd."""
    group = tmp_path / "sys/fs/cgroup/system.slice/laxity.service"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/laxity.service\n")
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (group / "cgroup.subtree_control").write_text("")
    return tmp_path, group


def test_the_agent_moves_into_a_leaf_and_hands_the_controllers_on(delegated):
    root, group = delegated

    hand_on_controllers(root)

    assert (group / "laxity-agent/cgroup.procs").read_text() == str(os.getpid())
    assert (group / "cgroup.subtree_control").read_text() == "+memory"


def test_an_agent_that_shares_its_group_leaves_it_alone(delegated):
    root, group = delegated
    (group / "cgroup.procs").write_text(f"17\n{os.getpid()}\n")

    with pytest.raises(ControlGroupError, match="other processes share"):
        hand_on_controllers(root)

    assert (group / "cgroup.subtree_control").read_text() == ""


def test_a_worker_has_a_group_beside_the_agents(delegated):
    root, group = delegated
    (root / "proc/self/cgroup").write_text("0::/system.slice/laxity.service/laxity-agent\n")
    (group / "cgroup.subtree_control").write_text("memory\n")

    own = join_group("cpu-0", 512_000_000, root)

    assert own == group / "laxity-cpu-0"
    assert (own / "memory.max").read_text() == "512000000"
    assert (own / "cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("membership", "said"),
    [
        ("0::/system.slice/laxity.service\n", "not delegated"),
        ("4:memory:/box\n", "only version 1"),
        (None, "No such file"),
    ],
)
def test_a_group_that_cannot_be_had_says_why(delegated, membership, said):
    root, _ = delegated
    file = root / "proc/self/cgroup"
    file.unlink() if membership is None else file.write_text(membership)

    with pytest.raises(ControlGroupError, match=said):
        join_group("cpu-0", 1, root)


def test_memory_is_what_the_box_and_every_group_have_left(delegated):
    root, group = delegated
    (root / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    assert available_bytes(root) == 5000 * 1024

    (group.parent / "memory.max").write_text("3000000")
    (group.parent / "memory.current").write_text("1000000")
    (group / "memory.max").write_text("max")
    assert available_bytes(root) == 2_000_000

    assert available_bytes(Path("/nonexistent")) is None


def test_memory_of_a_container_under_control_groups_of_version_1(tmp_path):
    group = tmp_path / "sys/fs/cgroup/memory"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    # As in a container: the path is that on the host, and the mount the container's own group.
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/docker/0a1b\n1:cpu:/\n0::/\n")
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 5000 kB\n")
    (group / "memory.limit_in_bytes").write_text("3000000\n")
    (group / "memory.usage_in_bytes").write_text("1000000\n")
    (group / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 500000\n")
    assert available_bytes(tmp_path) == 2_500_000

    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert available_bytes(tmp_path) == 5000 * 1024
