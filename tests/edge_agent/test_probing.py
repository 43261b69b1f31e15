"""Who crashes or hangs when asked for devices is left out, and the box starts all the same."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from edge_agent.errors import AgentError
from edge_agent.hardware import probe
from edge_agent.probing import Probing, look, probe_apart


def with_fault(fault: str, name: str) -> tuple[str, ...]:
    """Looks as the real one does, but for what happens unless somebody is left out."""
    script = f"""
import os, signal, sys, time
from edge_agent import probing
if {name!r} not in sys.argv[1:]:
    {fault}
probing.main()
"""
    return sys.executable, "-c", script


def test_what_is_found_apart_is_what_is_found_here():
    assert probe_apart() == probe()
    assert look(("OpenVINO",)).cpu == probe().cpu


def test_modules_where_it_is_started_are_not_taken_for_ours(tmp_path, monkeypatch):
    for name in ("edge_agent", "scheduler", "workers"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert probe_apart() == probe()


@pytest.mark.parametrize(
    ("fault", "name", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "OpenVINO", "SIGSEGV"),
        ("os._exit(3)", "NVIDIA's driver", "status 3"),
        ("os.kill(os.getpid(), 35)", "ONNX Runtime or TensorRT", "signal 35"),
    ],
)
def test_who_ends_the_process_is_left_out_and_noted(fault, name, how):
    (note,) = probe_apart(with_fault(fault, name)).notes
    assert note == (
        f"{name} was not asked for devices, since the process that probed them ended with {how}"
    )


def test_who_hangs_is_left_out_too():
    (note,) = probe_apart(with_fault("time.sleep(1000)", "OpenVINO"), patience_s=8.0).notes
    assert note.endswith("the process that probed them did not answer within 8 s")


def test_a_signal_for_the_agents_group_is_none_for_who_is_asked():
    fault = "assert os.getpgid(0) != os.getpgid(os.getppid())"
    assert probe_apart(with_fault(fault, "nobody's")) == probe()


def test_what_a_library_says_is_not_taken_for_what_is_found():
    fault = (
        "ask = probing.nvidia_gpus; probing.nvidia_gpus = lambda: os.system('echo hello') or ask()"
    )
    assert probe_apart(with_fault(fault, "nobody's")) == probe()


def test_a_process_that_ends_whoever_is_asked_is_an_error():
    with pytest.raises(AgentError, match="the probing process ended with SIGABRT"):
        probe_apart((sys.executable, "-c", "import os; os.abort()"))


def test_an_error_is_that_of_who_looked():
    fault = "probing.look = lambda _: open('/proc/none')"
    with pytest.raises(FileNotFoundError, match="/proc/none"):
        probe_apart(with_fault(fault, "nobody's"))


def test_libraries_of_devices_are_not_kept_in_memory():
    script = (
        "import sys; from edge_agent.hardware import default_devices\n"
        "from edge_agent.probing import probe_apart\n"
        "default_devices(probe_apart())\n"
        "print([name for name in ('openvino', 'onnxruntime') if name in sys.modules])"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    assert said.stdout.strip() == "[]"


def test_who_looks_beside_is_ended_with_who_asked():
    before = set(psutil.Process().children())
    with Probing((sys.executable, "-c", "import time; time.sleep(100)")) as probing:
        (looking,) = set(psutil.Process().children()) - before
        assert looking.is_running()
    assert not looking.is_running()
    with Probing() as probing:
        assert probing.wait() == probe()  # and is gone before the end
