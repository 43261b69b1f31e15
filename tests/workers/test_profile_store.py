from __future__ import annotations

import json
from typing import Any

import pytest

from workers.device_watch import DeviceWatch
from workers.fingerprint import fingerprint
from workers.profile_store import Profile, ProfileStore
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceSpec
from workers.telemetry import probe_for

HERE = {"processor": "a", "runtime": "openvino 1"}
MEASURED = Profile({1: (10, 11, 12), 2: (15, 15)})


@pytest.fixture
def reports():
    return []


@pytest.fixture
def store(tmp_path, reports):
    return ProfileStore(tmp_path / "profiles", reports.append)


def test_what_was_put_is_got_by_any_later_store(store, tmp_path, reports):
    store.put(HERE, "key", "model", "fp32", MEASURED)
    store.put(HERE, "other", "model", "int8", Profile({}, rejected="off by 3"))
    later = ProfileStore(tmp_path / "profiles", reports.append)

    assert later.get(HERE, "key") == MEASURED
    assert later.get(HERE, "other") == Profile({}, rejected="off by 3")
    assert reports == []


def test_what_is_put_is_kept_though_the_folder_was_removed_since_the_start(store, tmp_path):
    (tmp_path / "profiles").rmdir()
    store.put(HERE, "key", "model", "fp32", MEASURED)
    assert store.get(HERE, "key") == MEASURED


def test_nothing_is_got_where_nothing_was_put(store, reports):
    assert store.get(HERE, "key") is None
    store.put(HERE, "key", "model", "fp32", MEASURED)
    assert store.get(HERE, "another key") is None
    assert store.get({**HERE, "runtime": "openvino 2"}, "key") is None
    assert reports == []


def valid() -> dict[str, Any]:
    entry = {"model": "m", "variant": "v", "latency_ns": {"1": [5]}, "rejected": None}
    return {"format": 1, "fingerprint": HERE, "profiles": {"key": entry}}


def broken(**latency_ns: list[int]) -> str:
    document = valid()
    document["profiles"]["key"]["latency_ns"] = latency_ns
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        json.dumps(valid())[:-20],
        "[]",
        json.dumps({**valid(), "format": 2}),
        json.dumps({**valid(), "fingerprint": {"processor": "b"}}),
        broken(),
        broken(**{"2": [5]}),
        broken(**{"1": []}),
        broken(**{"1": [6, 5]}),
        broken(**{"1": [0, 5]}),
    ],
)
def test_a_corrupt_file_is_reported_and_then_replaced(store, reports, text):
    store.path(HERE).write_text(text)

    assert store.get(HERE, "key") is None
    assert len(reports) == 1
    assert "measuring again" in reports[0]
    assert str(store.path(HERE)) in reports[0]

    store.put(HERE, "key", "model", "fp32", MEASURED)
    assert store.get(HERE, "key") == MEASURED


def test_the_file_is_sound_and_nothing_else_is_left_behind(store):
    store.path(HERE).write_text(json.dumps(valid()))
    assert store.get(HERE, "key") == Profile({1: (5,)})

    store.put(HERE, "key", "model", "fp32", MEASURED)

    assert list(store.path(HERE).parent.iterdir()) == [store.path(HERE)]


def test_a_failed_write_leaves_the_old_file(store, monkeypatch):
    store.put(HERE, "key", "model", "fp32", MEASURED)

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        store.put(HERE, "key", "model", "fp32", Profile({1: (99,)}))

    assert store.get(HERE, "key") == MEASURED
    assert list(store.path(HERE).parent.iterdir()) == [store.path(HERE)]


def test_old_profiles_make_room_for_those_of_new_files(store):
    store.put(HERE, "in use", "other model", "fp32", MEASURED)
    for number in range(100):
        store.put(HERE, f"key {number}", "model", "fp32", MEASURED)
        store.put(HERE, "measured again", "model", "fp32", MEASURED)
        if number == 49:
            size = store.path(HERE).stat().st_size
    assert store.path(HERE).stat().st_size == size
    for key in ("in use", "key 99", "key 98", "measured again"):
        assert store.get(HERE, key) == MEASURED
    assert store.get(HERE, "key 0") is None


def test_models_that_were_removed_make_room(store, monkeypatch):
    monkeypatch.setattr("workers.profile_store._MOST", 3)
    for number in range(5):
        store.put(HERE, f"key {number}", f"model {number}", "fp32", MEASURED)
    assert [store.get(HERE, f"key {n}") == MEASURED for n in range(5)] == [False] * 2 + [True] * 3


@pytest.fixture
def system(tmp_path):
    """The files of a system that fingerprints read."""

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/cpuinfo", "processor : 0\nmodel name\t: Some CPU @ 2 GHz\n")
    write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")
    write("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n")
    return tmp_path, write


def taken(system, spec: DeviceSpec) -> dict[str, str]:
    state = DeviceWatch(probe_for(spec, system[0])).state
    return fingerprint(spec, RUNTIMES["emulated"](), state, system[0])


def test_a_fingerprint_names_all_that_a_latency_depends_on(system):
    spec = DeviceSpec("cpu:0", "cpu", cores=(0, 1), options={"base_ms": 1})

    assert taken(system, spec) == {
        "kind": "cpu",
        "processor": "Some CPU @ 2 GHz",
        "cores": "0,1",
        "runtime": "emulated 1",
        "power": "performance powersave",
        "throttled": "no",
        "options": '{"base_ms": 1}',
    }


def test_a_fingerprint_changes_with_the_device_but_not_with_its_id(system):
    spec = DeviceSpec("cpu:0", "cpu", cores=(0,))

    assert taken(system, spec) == taken(system, DeviceSpec("cpu:7", "cpu", cores=(0,)))
    assert taken(system, spec) != taken(system, DeviceSpec("cpu:0", "cpu", cores=(1,)))
    before = taken(system, spec)
    system[1]("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "schedutil\n")
    assert taken(system, spec) != before


def test_a_board_is_named_where_its_cpu_is_not(system):
    system[1]("proc/cpuinfo", "processor : 0\nCPU implementer : 0x41\n")
    system[1]("proc/device-tree/model", "NVIDIA Jetson Orin Nano\x00")
    system[1]("var/lib/nvpmodel/status", "pmode:0001\n")
    found = taken(system, DeviceSpec("cpu:0", "cpu", cores=(0,)))

    assert found["processor"] == "NVIDIA Jetson Orin Nano"
    assert found["power"] == "performance pmode:0001"


def test_what_a_system_does_not_tell_is_unknown(tmp_path):
    assert taken((tmp_path, None), DeviceSpec("cpu:0", "cpu"))["power"] == "unknown"


def test_damaged_files_of_others_do_not_hide_what_a_device_was(store, system):
    spec = DeviceSpec("cpu:0", "cpu")
    before = taken(system, spec)
    store.put(before, "key", "model", "variant", Profile({1: (5,)}))
    (store.path(before).parent / "0.json").write_text("{")
    (store.path(before).parent / "1.json").symlink_to("nowhere")
    now = {**before, "power": "saving"}
    assert "has become 'saving'" in (store.superseded(now) or "")
