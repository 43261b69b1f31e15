"""What goes wrong on a box is said clearly, and the rest is served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.workers import onnx_models
from tests.workers.conftest import QUICK
from workers import measuring_again
from workers.device_host import DeviceHost
from workers.memory import resident_bytes
from workers.runtimes import RUNTIMES
from workers.runtimes.base import DeviceSpec, Limits, ModelLoadError

CPU_RUNTIMES = [name for name in ("openvino", "onnxruntime") if RUNTIMES[name]().missing() is None]


@pytest.fixture
def start(root, add, tmp_path):
    """Starts a host, on a repository that has a good model beside what a test adds."""
    add("good", onnx_models.relu())
    hosts = []

    def start_host(system_root: Path = Path("/"), limits: Limits | None = None) -> DeviceHost:
        spec = DeviceSpec("cpu:0", "cpu", limits=limits or Limits())
        host = DeviceHost(spec, root, tmp_path / "state", 4, QUICK, system_root=system_root)
        hosts.append(host)
        return host

    yield start_host
    for host in hosts:
        host.close()


def served(host: DeviceHost) -> list[str]:
    """The models that are offered, the good one answering."""
    names = [offer.model for offer in host.prepare()]
    assert "good" in names
    (result,) = host.run("good", "1", [{"x": np.array([-1, 0, 2], np.float32)}])
    assert isinstance(result, dict)
    assert result["y"].tolist() == [0, 0, 2]
    return names


def file_reason(host: DeviceHost) -> str:
    (problem,) = host.repository.problems
    assert problem.model == "bad"
    return problem.reason


@pytest.mark.parametrize("kept", [0.5, 0.999], ids=["half", "all but the end"])
def test_a_truncated_model(start, add, kept):
    file = add("bad", onnx_models.dense())
    size = file.stat().st_size
    os.truncate(file, int(size * kept))
    host = start()

    assert served(host) == ["good"]
    assert "file 'model.onnx' is cut short" in file_reason(host)
    assert f"it holds {int(size * kept):,} bytes" in file_reason(host)


def test_a_file_that_is_no_model(start, root):
    (root / "bad" / "1").mkdir(parents=True)
    (root / "bad" / "1" / "model.onnx").write_text("<html>404 Not Found</html>")
    host = start()

    assert served(host) == ["good"]
    assert "is no ONNX model: it begins with b'<html>404 No'" in file_reason(host)


def test_a_git_lfs_pointer(start, root):
    (root / "bad" / "1").mkdir(parents=True)
    (root / "bad" / "1" / "model.onnx").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 4917204\n"
    )
    host = start()

    assert served(host) == ["good"]
    assert "file 'model.onnx' is a Git LFS pointer; run `git lfs pull`" in file_reason(host)


@pytest.mark.skipif(len(CPU_RUNTIMES) < 2, reason="quotes both CPU runtimes")
@pytest.mark.parametrize(("domain", "said"), [("", "FancyOp"), ("com.acme", "com.acme.FancyOp")])
def test_an_operator_that_no_runtime_knows(start, root, domain, said):
    ends = [onnx_models.tensor(name, "float32", ["N", 3]) for name in ("x", "y")]
    node = helper.make_node("FancyOp", ["x"], ["y"], domain=domain)
    graph = helper.make_graph([node], "graph", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 17)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    (root / "bad" / "1").mkdir(parents=True)
    onnx.save(made, root / "bad" / "1" / "model.onnx")
    host = start()

    assert served(host) == ["good"]
    assert f"no installed runtime knows the operator {said};" in file_reason(host)


def box(root: Path, governor: str = "schedutil", free_kb: int = 4_000_000) -> Path:
    """A file tree of a box, in the formats of proc(5) and the kernel's cpufreq guide."""
    files = {
        "proc/meminfo": f"MemTotal: 8000000 kB\nMemAvailable: {free_kb} kB\n",
        "proc/cpuinfo": "model name\t: Some CPU\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": f"{governor}\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_a_model_too_large_for_memory(start, add, tmp_path):
    add("bad", onnx_models.dense(width=512))
    host = start(box(tmp_path / "box", free_kb=800))

    assert served(host) == ["good"]
    (problem,) = host.problems
    assert (problem.model, problem.runtime) == ("bad", "*")
    assert problem.reason == (
        "too large for memory: the weights of 'model.onnx' take 1.0 MB and 0.8 MB are left"
    )


@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_memory_that_runs_out_while_a_model_is_loaded(start, add, monkeypatch, runtime):
    add("bad", onnx_models.dense())
    made = type(RUNTIMES[runtime]())
    load = made.load

    def out_of_memory(self, model, variant, device, cache_dir):
        if model.name == "bad":
            raise ModelLoadError(f"{runtime}: std::bad_alloc")
        return load(self, model, variant, device, cache_dir)

    monkeypatch.setattr(made, "load", out_of_memory)
    host = start()

    assert "good" in served(host)
    (problem,) = host.problems
    assert problem.reason.startswith("too large for memory: its weights take 0.1 MB; ")
    assert problem.reason.endswith(f"{runtime}: std::bad_alloc")


LIMITED = """
import sys
from pathlib import Path
from tests.workers.conftest import QUICK
from workers.device_host import DeviceHost
from workers.memory import resident_bytes
from workers.runtimes.base import DeviceSpec, Limits, ModelLoadError
import onnxruntime, openvino

limits = Limits(memory_bytes=resident_bytes() + 100_000_000)
device = DeviceSpec("cpu:0", "cpu", limits=limits)
host = DeviceHost(device, Path(sys.argv[1]), Path(sys.argv[2]), 2, QUICK)
print([offer.model for offer in host.prepare()])
print(host.repository.problems, host.problems)
"""


@pytest.mark.skipif(len(CPU_RUNTIMES) < 2, reason="imports both CPU runtimes")
def test_a_model_that_takes_more_than_its_process_may(add, root, tmp_path):
    """For real: a process limited to 100 MB more than it has, and a model of 144 MB."""
    add("good", onnx_models.relu())
    add("huge", onnx_models.dense(width=6000))
    command = [sys.executable, "-c", LIMITED, root, tmp_path / "state"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    served_line, problems = done.stdout.splitlines()[:2]
    assert served_line == "['good']"
    assert "model='huge'" in problems
    assert "too large for memory: " in problems
    assert "take 144.0 MB" in problems


def test_a_model_beyond_the_limit_of_the_control_group(start, add, tmp_path):
    add("bad", onnx_models.dense(width=512))
    root = box(tmp_path / "box")
    group = root / "sys/fs/cgroup/system.slice/laxity.service"
    group.mkdir(parents=True)
    (root / "proc/self").mkdir()
    (root / "proc/self/cgroup").write_text("0::/system.slice/laxity.service\n")
    (group / "memory.max").write_text("3000000\n")
    (group / "memory.current").write_text("2900000\n")
    (group / "memory.stat").write_text("anon 1000000\ninactive_file 400000\n")
    host = start(root)

    assert served(host) == ["good"]
    assert "take 1.0 MB and 0.5 MB are left" in host.problems[0].reason


def test_a_model_beyond_the_limit_of_the_device(start, add, tmp_path):
    add("bad", onnx_models.dense(width=512))
    root = box(tmp_path / "box")
    (root / "proc/self").mkdir()
    (root / "proc/self/status").write_text("Name: python\nVmRSS:\t  4000 kB\n")
    # Above what this process takes, so that the test itself goes on.
    used = resident_bytes()
    spec = Limits(memory_bytes=4_800_000)
    host = start(root)
    host._trials._loader.device = DeviceSpec("cpu:0", "cpu", limits=spec)

    assert used > 4_800_000
    assert served(host) == ["good"]
    assert "take 1.0 MB and 0.7 MB are left" in host.problems[0].reason


@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_an_upgraded_runtime(start, monkeypatch, runtime):
    served(start())
    made = type(RUNTIMES[runtime]())
    before = made().version()
    monkeypatch.setattr(made, "version", lambda self: "99.0.1")
    host = start()
    texts: list[str] = []

    list(host.prepare(lambda done, total, text: texts.append(text)))

    assert any(f"{runtime}, batch 1" in text for text in texts)
    (problem,) = host.problems
    assert problem.runtime == runtime
    assert problem.reason == (
        f"'{runtime} {before}' has become '{runtime} 99.0.1': earlier measurements are stale; "
        "measuring again"
    )
    assert start().problems == []


def test_a_changed_power_mode(start, tmp_path):
    root = box(tmp_path / "box")
    host = start(root)
    served(host)
    assert [host.has_changed() for _ in range(3)] == [False, False, False]

    box(root, governor="powersave")

    # A single look could be a passing moment.
    assert [host.has_changed() for _ in range(3)] == [False, True, False]
    texts: list[str] = []
    assert list(host.prepare(lambda done, total, text: texts.append(text)))
    assert any("batch 1" in text for text in texts)
    for problem in host.problems:
        assert "'schedutil' has become 'powersave'" in problem.reason
    assert {problem.runtime for problem in host.problems} == set(CPU_RUNTIMES)
    # Back in the mode that was measured first, nothing is measured.
    box(root)
    assert [host.has_changed() for _ in range(2)] == [False, True]
    texts.clear()
    list(host.prepare(lambda done, total, text: texts.append(text)))
    assert not any("batch 1" in text for text in texts)


def test_a_file_that_is_exchanged_is_not_taken_for_what_it_was_in_another_power_mode(
    start, tmp_path, root
):
    box_root = box(tmp_path / "box")
    host = start(box_root)
    served(host)
    (file,) = (root / "good").rglob("*.onnx")
    other = onnx_models.relu()
    other.graph.node[0].op_type = "Neg"
    onnx_models.save(other, file)
    box(box_root, governor="powersave")
    assert [host.has_changed() for _ in range(2)] == [False, True]

    assert list(host.prepare()) == []

    (result,) = host.run("good", "1", [{"x": np.array([-1, 0, 2], np.float32)}])
    assert isinstance(result, dict)
    assert result["y"].tolist() == [0, 0, 2], "what was loaded of the file as it was"
    told = [p.reason for p in host.problems if p.model == "good"]
    assert told == ["its file was replaced, and is not served yet"]
    again = start(box_root)
    list(again.prepare())
    (result,) = again.run("good", "1", [{"x": np.array([-1, 0, 2], np.float32)}])
    assert isinstance(result, dict)
    assert result["y"].tolist() == [1, 0, -2]


@pytest.mark.parametrize("known", [False, True], ids=["measured", "stored"])
def test_a_power_mode_that_changes_on_the_way_has_nothing_stored(start, tmp_path, known):
    root = box(tmp_path / "box")
    if known:
        served(start(root))
        first, *others = sorted((tmp_path / "state/profiles").glob("*.json"))
        first.unlink()
        assert others
    host = start(root)
    mode = iter(["powersave"])

    def change(done: int, total: int, text: str) -> None:
        for governor in mode:
            box(root, governor=governor)
            assert [host.has_changed() for _ in range(2)] == [False, True]

    list(host.prepare(change))
    texts: list[str] = []
    list(host.prepare(lambda done, total, text: texts.append(text)))

    for runtime in CPU_RUNTIMES:
        assert any(f"{runtime}, batch 1" in text for text in texts)


def test_nothing_is_measured_again_while_all_is_due_in_another_power_mode(start, tmp_path):
    root = box(tmp_path / "box")
    host = start(root)
    served(host)
    store = sorted((tmp_path / "state/profiles").glob("*.json"))
    box(root, governor="powersave")
    assert [host.has_changed() for _ in range(2)] == [False, True]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring_again, "_IDLE_S", 0)
        patch.setattr(measuring_again, "measure_ladder", lambda *_, **__: {1: (1,)})
        assert host.measure_again("good", "1") is None

    assert sorted((tmp_path / "state/profiles").glob("*.json")) == store


@pytest.mark.skipif("openvino" not in CPU_RUNTIMES, reason="OpenVINO compiles to files")
@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "gone", "manifest"])
def test_a_corrupt_compiled_model(start, tmp_path, damage):
    served(start())
    (blob,) = (tmp_path / "state" / "compiled").rglob("*.blob")
    content = blob.read_bytes()
    if damage == "cut":
        blob.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        middle = len(content) // 2
        blob.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif damage == "foreign":
        (blob.parent / "other.blob").write_bytes(b"from another box")
    elif damage == "gone":
        blob.unlink()
    else:
        (blob.parent / "sealed.json").write_text("{")
    for profile in (tmp_path / "state" / "profiles").iterdir():
        profile.unlink()
    host = start()

    assert served(host) == ["good"]
    (problem,) = host.problems
    assert (problem.model, problem.runtime) == ("good", "openvino")
    assert "is discarded and compiled again: " in problem.reason
    again = start()
    served(again)
    assert again.problems == []


def test_a_corrupt_profile(start, tmp_path):
    served(start())
    profiles = sorted((tmp_path / "state" / "profiles").iterdir())
    for profile in profiles:
        profile.write_text(profile.read_text()[:50])
    host = start()

    assert served(host) == ["good"]
    told = sorted(problem.told() for problem in host.problems)
    assert [what for what, _ in told] == ["all models"] * len(profiles)
    for profile, (_, why) in zip(profiles, told, strict=True):
        assert why.startswith(f"profiles in {profile} are unreadable; measuring again: Invalid")
