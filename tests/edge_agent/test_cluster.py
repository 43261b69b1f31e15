from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from edge_agent import cluster
from edge_agent.cluster import Cluster
from edge_agent.errors import AgentError
from tests.waiting import PATIENCE_S

CLUSTER = """
import shutil
import ray
from edge_agent.cluster import Cluster
from edge_agent.run_dir import make_run_dir

folder = make_run_dir()
try:
    cluster = Cluster(folder / "ray", 1)
    print(ray.get(ray.put(list(range(5)))))
    cluster.stop()
finally:
    shutil.rmtree(folder)
"""


def run(
    script: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_part_is_watched_though_another_process_vanishes_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Gone:
        def name(self) -> str:
            raise psutil.NoSuchProcess(1)

    shutil.copy(shutil.which("sleep") or "", tmp_path / "raylet")
    died: queue.SimpleQueue[str] = queue.SimpleQueue()
    with subprocess.Popen([tmp_path / "raylet", "inf"]) as raylet:
        found = [Gone(), psutil.Process(raylet.pid)]
        monkeypatch.setattr(psutil.Process, "children", lambda *_, **__: found)
        try:
            Cluster.watch(Cluster.__new__(Cluster), died.put)
        finally:
            raylet.kill()
    assert died.get(timeout=PATIENCE_S) == "raylet"


@pytest.mark.e2e
def test_rays_workers_import_nothing_from_where_the_agent_was_started(tmp_path: Path) -> None:
    (tmp_path / "policies.py").write_text("raise ImportError('not ours')")
    look = "ray.get(ray.remote(lambda: __import__('policies').DEFAULT).remote())"
    script = f"import os\n{CLUSTER}".replace(
        "    cluster.stop()", f"    print({look}, os.getcwd())\n    cluster.stop()"
    )
    done = run(script, cwd=tmp_path)
    assert done.stdout.splitlines()[1:] == [f"goodput {tmp_path}"], done.stderr


@pytest.mark.e2e
def test_ray_starts_where_shared_memory_is_closed() -> None:
    """As in containers with a file system that is read-only."""
    beside = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    if shutil.which("unshare") is None or subprocess.run([*beside, "true"], check=False).returncode:
        pytest.skip("no mounts of its own: it takes unshare, and root or user namespaces")
    closed = 'mount -t tmpfs -o ro none /dev/shm && exec "$0" -c "$1"'
    done = subprocess.run(
        [*beside, "sh", "-c", closed, sys.executable, CLUSTER],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[0, 1, 2, 3, 4]", done.stderr
    assert "/dev/shm can't be written: Ray keeps shared memory in files in" in done.stderr


COMMAND_OF = """
import psutil

def command_of(process):
    try:
        return process.cmdline()
    except psutil.Error:  # a worker that Ray has ended meanwhile
        return []
"""


@pytest.mark.e2e
def test_ray_starts_and_awaits_nothing_that_a_box_does_not_need() -> None:
    running = "print(*[word for process in psutil.Process().children(recursive=True)"
    # Not what waits in a helper's place, by `-c`, with the helper's command.
    running += " if '-c' not in (command := command_of(process))"
    running += " for word in command if word.startswith(('/', 'ray::'))])\n"
    asked = "print(ray.get(ray.remote(os.getenv).options(runtime_env=ENV).remote('ASKED')))\n"
    steps = "    ".join((running, asked, running))
    script = "import os\nENV = {'env_vars': {'ASKED': 'got'}}\n" + COMMAND_OF + CLUSTER
    script = script.replace("    cluster.stop()", f"    {steps}    cluster.stop()")
    done = run(script, RAY_enable_metrics_collection="0")  # as the agent has it
    _, before, got, after = done.stdout.splitlines()
    programs = {Path(word).name for word in before.split()} - {Path(sys.executable).name}
    worker = {"setup_worker.py", "default_worker.py", "ray::IDLE"}  # by and by
    assert programs - worker == {"gcs_server", "raylet", "log_monitor.py"}, done.stderr
    # An environment that a caller asks for is prepared by a helper that starts only then.
    assert got == "got"
    assert "ray::RuntimeEnvAgent" in after.split()


@pytest.mark.e2e
def test_ray_starts_as_it_wants_in_the_end() -> None:
    """Were what is left out needed after all, no box would start."""
    again = "import edge_agent.cluster\nedge_agent.cluster._STARTS = 1\n"
    logs = "print(*[p.stem for p in folder.glob('ray/session_*/logs/dashboard*.log')])\n"
    script = again + CLUSTER.replace("    cluster.stop()", f"    {logs}    cluster.stop()")
    done = run(script, RAY_enable_metrics_collection="0")  # as the agent has it
    assert "dashboard_agent" in done.stdout.split(), done.stderr


@pytest.mark.e2e
def test_a_ray_that_can_not_be_started_is_told_in_a_line() -> None:
    """As on a machine so busy that Ray's processes are not up in time."""
    script = CLUSTER.replace('"ray", 1)', '"ray", 1, object_store_bytes=1)')
    done = run(script)
    said = done.stderr.splitlines()[-1]
    assert said.startswith("edge_agent.errors.AgentError: Ray can't be started: Attempting to cap")


SIGNALLED = """
import os, signal, sys, threading
from pathlib import Path
import psutil
import ray._private.worker as worker
from edge_agent.terminal import on_signals

stop = threading.Event()
on_signals(stop, threading.Event())
connect = worker.connect

def connect_later(*arguments, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    connect(*arguments, **options)

worker.connect = connect_later

def holds_back(process):
    status = dict(line.split(":\\t") for line in Path(f"/proc/{process.pid}/status").open())
    return int(status["SigBlk"], 16) >> signal.SIGTERM - 1 & 1
"""


@pytest.mark.e2e
def test_a_signal_while_ray_starts_is_held_back_but_not_from_rays_processes() -> None:
    """What a handler raises in Ray's start may be lost, and the signal with it."""
    seen = "print(stop.is_set(), [p.name() for p in psutil.Process().children() if holds_back(p)])"
    script = SIGNALLED + CLUSTER.replace("    cluster.stop()", f"    {seen}\n    cluster.stop()")
    done = run(script)
    assert done.stdout.splitlines() == ["[0, 1, 2, 3, 4]", "True []"], done.stderr


GIVES_UP = """
import ray

init = ray.init

def give_up(**options):
    ray.init = init
    raise RuntimeError("The current node timed out during startup.")

ray.init = give_up
"""


@pytest.mark.e2e
def test_ray_is_started_again_if_it_gives_up_on_a_busy_machine() -> None:
    """Its node manager ends when it has waited 15 s for a helper."""
    done = run(GIVES_UP + CLUSTER)
    assert done.stdout.strip() == "[0, 1, 2, 3, 4]", done.stderr
    assert "Ray did not start and is started again: " in done.stderr


def test_a_machine_without_the_address_for_rays_parts_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "_HOST", "192.0.2.1")  # for documentation: nobody has it
    with pytest.raises(AgentError, match=r"needs the address 192\.0\.2\.1"):
        Cluster(Path("/tmp/none"), 1)


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        (
            f"/{'long/' * 20}ray",
            r"Ray's sockets in /long/.* have paths that are \d+ bytes too long",
        ),
        ("/tmp/größe/ray", "Ray needs an ASCII path, not /tmp/größe/ray"),
    ],
)
def test_a_folder_that_has_no_place_for_sockets_is_told(folder: str, told: str) -> None:
    with pytest.raises(AgentError, match=f"^{told}; set TMPDIR to another folder"):
        Cluster(Path(folder), 1)
