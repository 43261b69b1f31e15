"""How two boxes in one Ray cluster affect each other when the head or their link fails.

    python -m benchmarks.ray_cluster_facts [--only GLOB] [--json FILE] [--list]

Two hosts (network namespaces) run plain Ray without laxity. A has the head; B has a joined node, an
actor that Ray restarts without limit, and a driver that calls it ten times a second. Then something
fails. Recorded are when calls fail, whose processes end, when the head takes B for dead, and
whether B's driver is served again. The requirements are those of `tests/hosts.py`, and
`redis-server` on the path for the scenarios with Redis. A scenario takes one to four minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from operator import sub
from pathlib import Path
from typing import Any

import psutil

from benchmarks.figures import write_figures
from tests.hosts import Host, Site, why_no_hosts

MARK = "LAXITY_RAY_FACTS"
GCS_PORT = 6379
HEAD_ALIAS = "10.77.0.201"
"""The address at which B reaches the head. `ray start --head` refuses to start if it sees a raylet
of a cluster at its own address, and here it sees those of all hosts."""
CALL_TIMEOUT_S = 2.0
WARM_S = 5.0
READY_S = 90.0

PATIENT = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "30000",
    "RAY_health_check_timeout_ms": "30000",
    "RAY_health_check_failure_threshold": "100",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
}
"""The longest sensible timeouts: most of an hour without an answer, and a day to reconnect."""

DRIVER = """
import json, sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

def say(**what):
    print(json.dumps({"at": time.monotonic(), **what}), flush=True)

ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], log_to_driver=False)

@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)
class Actor:
    def pid(self):
        import os
        return os.getpid()

here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
actor = Actor.options(scheduling_strategy=here).remote()
say(pid=ray.get(actor.pid.remote()))
while True:
    try:
        say(pid=ray.get(actor.pid.remote(), timeout=float(sys.argv[3])))
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        say(error=type(error).__name__, text=" ".join(lines)[:300])
    time.sleep(0.1)
"""

OBSERVER = """
import json, sys, time
import ray
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], log_to_driver=False)
while True:
    alive = {node["NodeManagerAddress"]: node["Alive"] for node in ray.nodes() if node["Alive"]}
    print(json.dumps({"at": time.monotonic(), "alive": alive.get(sys.argv[3], False)}), flush=True)
    time.sleep(0.5)
"""

OPEN_PORTS = """
import psutil
found = {c.laddr for c in psutil.net_connections("tcp") if c.status == "LISTEN"}
print(len({port for host, port in found if not host.removeprefix("::ffff:").startswith("127.")}))
"""


@dataclass
class Trial:
    """A cluster, and what was observed of it since the failure."""

    a: Host
    b: Host
    run: str
    folder: Path
    settings: Mapping[str, str]
    redis: bool = False
    lines: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ends: dict[str, float] = field(default_factory=dict)
    events: list[tuple[str, float]] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def gcs(self) -> str:
        return f"{HEAD_ALIAS}:{GCS_PORT}"

    def environment(self, host: Host) -> dict[str, str]:
        more = {"RAY_REDIS_ADDRESS": f"{self.a.address}:7000"} if self.redis else {}
        return {
            **os.environ,
            **self.settings,
            **more,
            MARK: f"{self.run}/{host.address}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.run * 2,
        }

    def start_head(self) -> None:
        self._ray(self.a, "--head", f"--port={GCS_PORT}", "--num-cpus=0")

    def start_node(self) -> None:
        self._ray(self.b, f"--address={self.gcs}", "--num-cpus=1")

    def _ray(self, host: Host, *options: str) -> None:
        ray = str(Path(sys.executable).parent / "ray")
        words = [ray, "start", f"--node-ip-address={host.address}", "--disable-usage-stats"]
        if "--head" in options:
            words += ["--include-dashboard=false", f"--temp-dir={self.folder}"]
        words += ["--object-store-memory=100000000", *options]
        host.run(*words, env=self.environment(host), timeout=READY_S)

    def happened(self, what: str) -> None:
        self.events.append((what, time.monotonic()))

    def processes(self, host: Host, name: str = "") -> list[psutil.Process]:
        """The processes started on a host, with a name in their command line."""
        found = []
        for process in psutil.process_iter():
            try:
                mark = process.environ().get(MARK)
                if mark == f"{self.run}/{host.address}" and name in " ".join(process.cmdline()):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def kill(self, host: Host, name: str) -> None:
        (process,) = self.processes(host, name)
        process.kill()

    def kill_all(self) -> None:
        for host in (self.a, self.b):
            for process in self.processes(host):
                process.kill()


@contextmanager
def cluster(trial: Trial) -> Iterator[None]:
    """Run the cluster, its driver and its observer until the block ends."""
    with ExitStack() as stack:
        stack.callback(trial.kill_all)
        if trial.redis:
            stack.enter_context(redis(trial))
        trial.a.run("ip", "address", "add", f"{HEAD_ALIAS}/24", "dev", "eth0")
        trial.start_head()
        trial.start_node()
        script = [sys.executable, "-c"]
        driver = [*script, DRIVER, trial.gcs, trial.b.address, str(CALL_TIMEOUT_S)]
        observer = [*script, OBSERVER, trial.gcs, trial.a.address, trial.b.address]
        for name, host, words in (("driver", trial.b, driver), ("observer", trial.a, observer)):
            spawn(trial, name, host, words)
        until(lambda: len(trial.lines["driver"]) > 20 and bool(trial.lines["observer"]))
        for name, host in (("a", trial.a), ("b", trial.b)):
            trial.ports[name] = int(host.run(sys.executable, "-c", OPEN_PORTS).stdout)
        watch(trial, "raylet", trial.processes(trial.b, "raylet/raylet")[0])
        watch(trial, "actor", psutil.Process(trial.lines["driver"][-1]["pid"]))
        time.sleep(WARM_S)
        yield


@contextmanager
def redis(trial: Trial) -> Iterator[None]:
    words = ["redis-server", "--port", "7000", "--bind", trial.a.address, "--protected-mode", "no"]
    words += ["--save", "", "--dir", str(trial.folder)]
    with subprocess.Popen(trial.a.command(*words), stdout=subprocess.DEVNULL) as process:
        try:
            time.sleep(1)
            yield
        finally:
            process.kill()


def spawn(trial: Trial, name: str, host: Host, words: Sequence[str]) -> None:
    """Start a script that prints lines of JSON; record its lines and when it ended."""
    process = subprocess.Popen(
        host.command(*words),
        env=trial.environment(host),
        stdout=subprocess.PIPE,
        stderr=(trial.folder / f"{name}.err").open("w"),
        text=True,
    )
    trial.lines[name] = []

    def read() -> None:
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                if line.startswith("{"):
                    trial.lines[name].append(json.loads(line))
        trial.ends[name] = time.monotonic()

    threading.Thread(target=read, daemon=True).start()


def watch(trial: Trial, name: str, process: psutil.Process) -> None:
    """Record when a process ended."""

    def wait() -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.05)
        trial.ends[name] = time.monotonic()

    threading.Thread(target=wait, daemon=True).start()


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError("the cluster did not get ready")
        time.sleep(0.1)


# -- what fails


def gcs_killed(trial: Trial) -> None:
    trial.kill(trial.a, "gcs_server")
    trial.happened("the head's gcs_server was killed")
    time.sleep(110)


def head_back(trial: Trial) -> None:
    for process in trial.processes(trial.a):
        process.kill()
    trial.happened("all of the head was killed")
    time.sleep(5)
    trial.start_head()
    trial.happened("the head was started again at its address")
    time.sleep(80)


def cut(seconds: float, kill_actor: bool = False) -> Callable[[Trial], None]:
    def fail(trial: Trial) -> None:
        trial.b.cut()
        trial.happened("B's link was cut")
        if kill_actor:
            time.sleep(2)
            psutil.Process(trial.lines["driver"][-1]["pid"]).kill()
            trial.happened("the actor was killed")
        time.sleep(max(0, trial.events[0][1] + seconds - time.monotonic()))
        trial.b.restore()
        trial.happened("the link was back")
        time.sleep(60)

    return fail


Scenario = tuple[Callable[[Trial], None], Mapping[str, str], bool]

SCENARIOS: dict[str, Scenario] = {
    "gcs-killed": (gcs_killed, {}, False),
    "head-back": (head_back, {}, False),
    "cut-10": (cut(10), {}, False),
    "cut-30": (cut(30), {}, False),
    "cut-60": (cut(60), {}, False),
    "actor-killed-in-cut-10": (cut(10, kill_actor=True), {}, False),
    "patient-gcs-killed": (gcs_killed, PATIENT, False),
    "patient-head-back": (head_back, PATIENT, False),
    "patient-cut-60": (cut(60), PATIENT, False),
    "patient-cut-120": (cut(120), PATIENT, False),
    "patient-actor-killed-in-cut-30": (cut(30, kill_actor=True), PATIENT, False),
    "redis-head-back": (head_back, {}, True),
    "redis-patient-head-back": (head_back, PATIENT, True),
}


# -- what was seen


def findings(trial: Trial) -> dict[str, Any]:
    """All observations, with times in seconds since the first failure."""
    began = trial.events[0][1]

    def since(at: float | None) -> float | None:
        return None if at is None else round(at - began, 1)

    calls = [line for line in trial.lines["driver"] if line["at"] >= began]
    good = [began, *(line["at"] for line in calls if "pid" in line)]
    errors = [line for line in calls if "error" in line]
    seen = [line for line in trial.lines["observer"] if line["at"] >= began]
    dead = next((line["at"] for line in seen if not line["alive"]), None)
    back = next((line["at"] for line in seen if dead and line["at"] > dead and line["alive"]), None)
    until_s = since(time.monotonic())
    return {
        "events": [{"at_s": since(at), "what": what} for what, at in trial.events],
        "ports_open_beyond_loopback": trial.ports,
        "observed_s": until_s,
        "last_good_call_s": since(good[-1]),
        "longest_without_s": round(max(map(sub, [*good[1:], good[-1]], good)), 1),
        "first_error_s": since(errors[0]["at"]) if errors else None,
        "errors": sorted({f"{line['error']}: {line['text']}" for line in errors}),
        "actors": len({line["pid"] for line in trial.lines["driver"] if "pid" in line}),
        "raylet_of_b_ended_s": since(trial.ends.get("raylet")),
        "actor_ended_s": since(trial.ends.get("actor")),
        "driver_ended_s": since(trial.ends.get("driver")),
        "said_at_the_end": (trial.folder / "driver.err").read_text()[-600:],
        "b_dead_for_the_head_s": since(dead),
        "b_alive_again_s": since(back),
        "observer_ended_s": since(trial.ends.get("observer")),
    }


def play(name: str) -> dict[str, Any]:
    """Play one scenario on its own hosts."""
    fail, settings, with_redis = SCENARIOS[name]
    # Ray puts sockets below it, whose paths are limited to 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="rf-"))
    try:
        with Site(2) as site:
            first, second = site.hosts
            trial = Trial(first, second, uuid.uuid4().hex, folder, settings, with_redis)
            with cluster(trial):
                fail(trial)
                return findings(trial)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", metavar="GLOB")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args(arguments)
    names = fnmatch.filter(SCENARIOS, options.only)
    if options.list:
        print("\n".join(names))
        return
    if reason := why_no_hosts():
        sys.exit(reason)
    found: dict[str, Any] = {"ray": version("ray")}
    for name in names:
        if SCENARIOS[name][2] and shutil.which("redis-server") is None:
            print(f"{name}: skipped, there is no redis-server", file=sys.stderr)
            continue
        found[name] = play(name)
        print(f"{name}: {json.dumps(found[name], indent=1)}", file=sys.stderr, flush=True)
    write_figures(found, options.json)


if __name__ == "__main__":
    main()
