"""What `laxity doctor` says of a machine that makes a box miss its deadlines."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from scheduler.config.box import Config, LimitsConfig
from scheduler.doctor.findings import Finding, Surroundings
from scheduler.doctor.machine import (
    Look,
    _check_others,
    _look,
    check_memory,
    check_open_files,
    check_processor,
)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine of two processors with these files, in which nothing is wrong but what they say."""
    monkeypatch.setattr("scheduler.doctor.machine._LOOK_S", 0.0)
    usual = {
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-1\n",
        "proc/self/cgroup": "0::/box\n",
        "proc/stat": "cpu 1 0 0 0 0 0 0 0 0 0\n",
        "sys/devices/system/cpu/online": "0-1\n",
        "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "sys/kernel/mm/transparent_hugepage/defrag": "always defer [madvise] never\n",
    }

    def made(files: dict[str, str] | None = None) -> Surroundings:
        for name, text in {**usual, **(files or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Surroundings(Config(), (), tmp_path)

    return made


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_where_nothing_is_wrong_nothing_is_said(machine) -> None:
    for check in (check_processor, check_memory):
        assert only(list(check(machine()))).level == "good"


@pytest.mark.parametrize(
    ("governor", "driver", "level"),
    [
        ("powersave", "acpi-cpufreq", "warning"),
        ("powersave", "intel_pstate", "good"),
        ("schedutil", "acpi-cpufreq", "good"),
    ],
)
def test_a_clock_that_stays_low_is_told(machine, governor, driver, level) -> None:
    folder = "sys/devices/system/cpu/cpu1/cpufreq"
    files = {f"{folder}/scaling_governor": governor, f"{folder}/scaling_driver": f"{driver}\n"}
    found = only(list(check_processor(machine(files))))
    assert found.level == level
    assert ("processor 1" in found.message) is (level == "warning")


@pytest.mark.parametrize(
    ("quota", "level"), [("150000 100000", "warning"), ("200000 100000", "good"), ("max", "good")]
)
def test_a_quota_below_the_processors_is_told(machine, quota, level) -> None:
    found = only(list(check_processor(machine({"sys/fs/cgroup/box/cpu.max": f"{quota}\n"}))))
    assert found.level == level
    if level == "warning":
        assert "1.5 s in each second, and have 2 processors" in found.message
        assert "CPUQuota=200%" in found.remedy


def test_who_computes_beside_the_box_is_named_and_the_box_is_not(machine) -> None:
    count = os.cpu_count() or 1
    before = Look(0, 0, dict.fromkeys((5, 6, 7, os.getpid()), (10, "")))
    after = Look(
        100 * count,
        10 * count,
        {
            5: (90, "ffmpeg -i camera"),
            6: (20, "idler"),
            7: (110, "ray::SchedulerActor"),
            8: (500, "just begun"),
            os.getpid(): (110, "python"),
        },
    )
    stolen, other = _check_others(before, after)
    assert "hypervisor gave 10%" in stolen.message
    assert "process 5 (ffmpeg -i camera) takes 80% of a core" in other.message
    assert list(_check_others(after, after)) == []


def test_a_processs_time_is_read_whatever_it_is_called(machine) -> None:
    fields = "S 1 1 1 0 -1 0 0 0 0 0 30 12 0 0 20 0 1 0 4711"
    files = {"proc/9/stat": f"9 (a) b ( c) {fields}\n", "proc/9/cmdline": "a\0-b\0"}
    around = machine({**files, "proc/10/stat": f"10 (kthread) {fields}", "proc/10/cmdline": ""})
    assert _look(around.root).by_pid == {9: (42, "a -b")}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"proc/swaps": "Filename Type Size Used Priority\n/swap file 999 65536 -2\n"}, "67 MB"),
        ({"proc/pressure/memory": "some avg10=9.00 avg60=4.50 avg300=0.10 total=1\n"}, "4.5 %"),
        (
            {"sys/kernel/mm/transparent_hugepage/defrag": "[always] defer madvise never\n"},
            "huge pages",
        ),
    ],
)
def test_memory_that_has_to_be_waited_for_is_told(machine, files, told) -> None:
    found = only(list(check_memory(machine(files))))
    assert found.level == "warning"
    assert told in found.message
    assert found.remedy


@pytest.mark.parametrize(("megabytes", "level"), [(500, "warning"), (600, "good")])
def test_a_container_needs_room_for_the_requests_that_may_wait(machine, megabytes, level) -> None:
    files = {
        "proc/meminfo": "MemTotal: 7802856 kB\n",
        "sys/fs/cgroup/box/memory.max": f"{megabytes}000000\n",
    }
    found = only(list(check_memory(machine(files))))
    assert found.level == level
    assert ("limits.queue_mb: 256" in found.message) is (level != "good")


def test_a_little_in_swap_is_no_matter(machine) -> None:
    swaps = "Filename Type Size Used Priority\n/swap file 999 65535 -2\n"
    assert only(list(check_memory(machine({"proc/swaps": swaps})))).level == "good"


@pytest.mark.parametrize(
    ("hard", "level"), [(255, "error"), (1000, "warning"), (1280, "good"), (-1, "good")]
)
def test_too_few_files_for_the_connections_are_told(monkeypatch, hard, level) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, hard))
    config = Config(limits=LimitsConfig(connections=1024))
    found = only(list(check_open_files(Surroundings(config, ()))))
    assert found.level == level
    assert ("ulimit -n 1280" in found.remedy) is (level != "good")
