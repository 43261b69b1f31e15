"""Processes are killed under load: each request ends once, service returns, nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import yaml

from scheduler import Client, DeadlineExpired, RequestEnded, Result
from scheduler.ingress.unix_door import is_answered
from tests.e2e.running_agent import (
    ModelsNamed,
    RunningAgent,
    command,
    kill_all,
    marked,
    policy_that_waits,
    processes_of,
)
from tests.waiting import PATIENCE_S, eventually
from tests.workers.onnx_models import counts, save

X = {"x": np.array([-1.0, 0.0, 2.0], np.float32)}
RELUS = ["relu", *(f"relu{number}" for number in range(1, 6))]
TOKEN = "a token of the box"


class Lives:
    """An agent that is started again, in the same folder, where a test has ended it.

    Args:
        folder: For its configuration, socket and state.
        models: The model repository.
        settings: More keys of the configuration.
    """

    def __init__(self, folder: Path, models: Path, **settings: Any) -> None:
        self._folder, self._models, self._settings = folder, models, settings
        self._agents: list[RunningAgent] = []

    def current(self) -> RunningAgent:
        """The one that serves."""
        if not self._agents or self._agents[-1].process.poll() is not None:
            self._agents.append(RunningAgent(self._folder, self._models, **self._settings))
        return self._agents[-1]

    @contextlib.contextmanager
    def unless_failed(self, session: pytest.Session) -> Iterator[None]:
        """Ends what a test that fails leaves, so that the next one starts afresh."""
        failed = session.testsfailed
        yield
        if session.testsfailed > failed:
            print("The end of the agent's log:\n", *self._agents[-1].lines[-40:], sep="")
            self.close()

    def close(self) -> None:
        """Ends whatever is left, whatever happened."""
        for load in list(Load.going):
            load.stop()
        for agent in self._agents:
            agent.close()


@pytest.fixture(scope="module")
def plain(models_named: ModelsNamed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    lives = Lives(tmp_path_factory.mktemp("plain"), models_named("relu", "slow"))
    yield lives
    lives.close()


@pytest.fixture
def agent(plain: Lives, request: pytest.FixtureRequest) -> Iterator[RunningAgent]:
    """One that serves; the next test goes on with it, unless this one ends it."""
    with plain.unless_failed(request.session):
        yield plain.current()


@pytest.fixture(scope="module")
def _special(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    folder = tmp_path_factory.mktemp("special")
    own, token = folder / "models", folder / "token"
    for name in RELUS:
        shutil.copytree(models / "relu", own / name)
    save(counts(), own / "counts/model.onnx")
    (own / "counts/model.yaml").write_text(
        "variants: {only: {file: model.onnx}}\nruntimes: [onnxruntime]\n"
    )
    token.write_text(TOKEN)
    token.chmod(0o600)
    (folder / "own.py").write_text(
        "import os\nfrom policies.edf import Edf\n\n\nclass Own(Edf):\n    pass\n\n\n"
        f"with open({str(folder / 'readers')!r}, 'a') as readers:\n"
        "    print(os.getpid(), file=readers)\n"
    )
    lives = Lives(
        folder,
        own,
        token_file=str(token),
        policy={"name": str(folder / "own.py")},
        devices=[{"id": "cpu:0", "stuck_after_s": 1}],
    )
    yield lives
    lives.close()


@pytest.fixture
def special(_special: Lives, request: pytest.FixtureRequest) -> Iterator[Lives]:
    """With a token, a policy that notes who reads it, and a model that can take for ever."""
    with _special.unless_failed(request.session):
        yield _special


@contextlib.contextmanager
def agent_process(config: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command as it starts, and its run; whatever is left of it is ended."""
    run, command = uuid.uuid4().hex, [sys.executable, "-m", "edge_agent", "--config", str(config)]
    with subprocess.Popen(
        [*command, *words],
        stderr=subprocess.PIPE,
        text=True,
        env=marked(run),
        start_new_session=True,
    ) as agent:
        try:
            yield agent, run
        finally:
            kill_all(run)


class Load:
    """Requests without end from a thread, with a record of each one's ending."""

    going: ClassVar[set[Load]] = set()
    """Those that no test has finished."""

    def __init__(self, url: str, deadline_ms: float = 500, token: str | None = None) -> None:
        self._client = Client(url, token=token)
        self._deadline_ms = deadline_ms
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.sent = 0
        self.endings: Counter[str] = Counter()
        self.last_result_s = 0.0
        self.unexpected: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.going.add(self)

    def _run(self) -> None:
        pace = threading.Semaphore(32)
        while not self._stop.is_set():
            pace.acquire()
            future = self._client.submit("relu", X, deadline_ms=self._deadline_ms)
            self.sent += 1
            future.add_done_callback(self._note)
            future.add_done_callback(lambda _: pace.release())

    def _note(self, future: Future[Result]) -> None:
        with self._lock:
            try:
                result = future.result()
                assert not result.late
                self.endings["result"] += 1
                self.last_result_s = time.monotonic()
            except (RequestEnded, CancelledError) as error:
                self.endings[type(error).__name__] += 1
            except BaseException as error:
                self.unexpected.append(error)

    def wait_for_result_after(self, moment_s: float, timeout_s: float = PATIENCE_S) -> float:
        """How long after a moment the next result came."""
        end_s = time.monotonic() + timeout_s
        while self.last_result_s <= moment_s:
            assert time.monotonic() < end_s, f"no result for {timeout_s} s: {self.endings}"
            threading.Event().wait(0.005)
        return self.last_result_s - moment_s

    def finish(self) -> None:
        """Stops, waits for every ending and checks that each request had exactly one."""
        self._stop.set()
        self._thread.join()
        end_s = time.monotonic() + PATIENCE_S
        while sum(self.endings.values()) < self.sent and time.monotonic() < end_s:
            threading.Event().wait(0.01)
        self.stop()
        assert self.unexpected == []
        assert sum(self.endings.values()) == self.sent

    def stop(self) -> None:
        """Sends nothing more, whatever became of what was sent."""
        self._stop.set()
        self._thread.join()
        self._client.close()
        self.going.discard(self)


def says(agent: RunningAgent, text: str, since: int = 0) -> bool:
    """Whether a line of the log has it, of those after the first so many."""
    return any(text in line for line in agent.lines[since:])


@contextlib.contextmanager
def away(path: Path) -> Iterator[None]:
    """Takes a file or folder away, and brings it back."""
    path.rename(path.with_name("away"))
    try:
        yield
    finally:
        path.with_name("away").rename(path)


def has_other_worker(agent: RunningAgent, lost: int) -> bool:
    """Whether there is a worker besides the one that was lost."""
    others = (process for process in agent.processes() if process.pid != lost)
    return any("ray::WorkerProcess" in command(process) for process in others)


def serves_again(agent: RunningAgent, since: int) -> bool:
    """Whether it has started over, and is ready, after so many lines of its log."""
    lines = agent.lines[since:]
    over = [number for number, line in enumerate(lines) if "starting over" in line]
    return bool(over) and any(line.startswith("Ready.") for line in lines[over[-1] :])


@pytest.mark.parametrize("actor", ["WorkerProcess", "SchedulerProcess"])
def test_a_killed_actor_comes_back_and_every_request_ends_once(
    agent: RunningAgent, actor: str
) -> None:
    load = Load(agent.url)
    load.wait_for_result_after(0)
    os.kill(agent.pid_of(actor), signal.SIGKILL)
    killed_s = time.monotonic()
    # Results that were on their way at the kill are none of the new process.
    threading.Event().wait(0.2)
    back_s = load.wait_for_result_after(max(load.last_result_s, killed_s))
    print(f"{actor} was back after {back_s:.1f} s")
    load.finish()
    assert load.endings["result"] > 0
    if actor == "SchedulerProcess":
        eventually(partial(says, agent, "the scheduler had ended and was started again"))
    assert not says(agent, "\x1b"), "colours in a log that is no terminal"


def test_a_scheduler_that_is_back_has_no_doors_before_its_workers_have_spoken(
    agent: RunningAgent,
) -> None:
    worker = psutil.Process(agent.pid_of("WorkerProcess"))

    def starts() -> int:
        return sum("the scheduler had ended and was started" in line for line in agent.lines)

    before = starts()
    with Client(agent.url) as client:
        worker.suspend()
        try:
            os.kill(agent.pid_of("SchedulerProcess"), signal.SIGKILL)
            eventually(lambda: starts() > before)
            future = client.submit("relu", X, deadline_ms=60_000)
            threading.Event().wait(1)
        finally:
            worker.resume()
        assert isinstance(future.result(60), Result)


CLIENT_SCRIPT = """
import sys
import numpy as np
from scheduler import Client
client = Client(sys.argv[1])
x = {"x": np.ones((1, 1), np.float32)}
futures = [client.submit("slow", x, deadline_ms=60_000) for _ in range(200)]
futures[0].result()
print("going", flush=True)
futures[-1].result()
"""


def test_a_killed_client_leaves_nothing_behind_and_others_notice_nothing(
    agent: RunningAgent,
) -> None:
    load = Load(agent.url, deadline_ms=5000)
    command = [sys.executable, "-c", CLIENT_SCRIPT, agent.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == b"going\n"
        victim.kill()
    with Client(agent.url) as client:
        eventually(lambda: client.status()["outcomes"]["cancelled"])
        queues = client.status()["queues"]
        assert sum(queue["requests"] for queue in queues if queue["model"] == "slow") == 0
    load.finish()
    assert set(load.endings) == {"result"}


def test_a_policy_swap_in_the_file_loses_no_request(agent: RunningAgent) -> None:
    load = Load(agent.url)
    with Client(agent.url) as client:
        for name in ("edf", "fcfs", "goodput"):
            agent.write_config(policy={"name": name})
            while client.status()["policy"]["name"] != name:
                threading.Event().wait(0.01)
        agent.write_config(policy={"name": "no-such-policy"})
        said: list[str] = []
        while not said:
            said = [line for line in agent.lines if "configuration not applied" in line]
            threading.Event().wait(0.01)
        assert "no-such-policy" in json.loads(said[0])["error"]
        eventually(lambda: client.status()["not_taken_over"])
        status = client.status()
        assert status["policy"]["name"] == "goodput"
        assert "no-such-policy" in status["not_taken_over"][0]
        assert re.match(rf"{agent.config_file}:\d+: policy", status["not_taken_over"][0])
        agent.write_config(policy={"name": "goodput"})
        while client.status()["not_taken_over"]:
            threading.Event().wait(0.01)
    load.finish()
    assert load.endings["result"] > 0


def test_a_policy_that_failed_is_tried_again_when_the_file_is_saved(agent: RunningAgent) -> None:
    file = agent.folder / "own.py"
    policy = "from policies.edf import Edf\n\n\nclass Own(Edf):\n    {}\n"
    file.write_text(policy.format("def decide(self, view):\n        raise OSError('broken')"))
    agent.write_config(policy={"name": str(file)})
    with Client(agent.url) as client:
        while not any("broken" in line for line in agent.lines):
            assert client.infer("relu", X, deadline_ms=5000).outcome == "completed"
        while client.status()["policy"]["name"] != "goodput":
            threading.Event().wait(0.01)
        file.write_text(policy.format("pass"))
        agent.write_config()
        while client.status()["policy"]["name"] != str(file):
            threading.Event().wait(0.01)
        assert client.infer("relu", X, deadline_ms=5000).outcome == "completed"
        agent.write_config(policy={"name": "goodput"})


def test_while_a_policy_is_loaded_requests_are_served(agent: RunningAgent) -> None:
    file, begun, go_on = policy_that_waits(agent.folder)
    with Client(agent.url) as client:
        client.infer("relu", X, deadline_ms=60_000)
        agent.write_config(policy={"name": str(file)})
        eventually(begun.exists)
        try:
            assert client.infer("relu", X, deadline_ms=5_000).outcome == "completed"
            assert client.status()["policy"]["name"] != str(file)
            loading = f"{agent.config_file}: its policy has been loading for "
            eventually(lambda: loading in "".join(client.status()["not_taken_over"]))
        finally:
            go_on.touch()
        eventually(lambda: client.status()["policy"]["name"] == str(file))
        assert client.status()["not_taken_over"] == []
        agent.write_config(policy={"name": "goodput"})
        eventually(lambda: client.status()["policy"]["name"] == "goodput")


def test_a_policys_own_file_is_read_again_when_the_configuration_is_saved(
    agent: RunningAgent,
) -> None:
    file = agent.folder / "changing.py"
    policy = "from policies.edf import Edf\n\n\nclass Own(Edf):\n    {}\n"
    file.write_text(policy.format("pass"))
    agent.write_config(policy={"name": "spill", "inner": str(file)})
    with Client(agent.url) as client:
        while client.status()["policy"]["name"] != "spill":
            threading.Event().wait(0.01)
        assert client.infer("relu", X, deadline_ms=5000).outcome == "completed"
        file.write_text(policy.format("def decide(self, view):\n        raise OSError('changed')"))
        agent.write_config()
        while not any("changed" in line for line in agent.lines):
            assert client.infer("relu", X, deadline_ms=5000).outcome == "completed"
        while client.status()["policy"]["name"] != "goodput":
            threading.Event().wait(0.01)
        # One with mistakes changes nothing, and what is saved after it is still read.
        file.write_text("class Own(:\n")
        agent.write_config()
        while not any("SyntaxError" in problem for problem in client.status()["not_taken_over"]):
            threading.Event().wait(0.01)
        agent.write_config(policy={"name": "fcfs"})
        while client.status()["policy"]["name"] != "fcfs":
            threading.Event().wait(0.01)
        agent.write_config(policy={"name": "goodput"})
        while client.status()["policy"]["name"] != "goodput":
            threading.Event().wait(0.01)


def test_a_second_agent_is_refused_and_says_why(agent: RunningAgent) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "edge_agent", "--config", str(agent.config_file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 1
    assert "another agent" in second.stderr


def test_an_agent_whose_ray_dies_starts_over_and_serves_again(agent: RunningAgent) -> None:
    since = len(agent.lines)
    load = Load(agent.url)
    load.wait_for_result_after(0)
    agent.named("gcs_server").kill()
    killed_s = time.monotonic()
    eventually(partial(serves_again, agent, since))
    load.wait_for_result_after(time.monotonic())
    print(f"back after {time.monotonic() - killed_s:.1f} s")
    load.finish()
    assert agent.process.poll() is None, "it is the same process"


def test_it_starts_over_with_the_last_configuration_if_the_file_has_a_mistake(
    agent: RunningAgent,
) -> None:
    since = len(agent.lines)
    agent.config_file.write_text("site: [")
    try:
        agent.named("gcs_server").kill()
        eventually(partial(serves_again, agent, since))
        assert says(agent, "Until this is mended, the last configuration", since)
        load = Load(agent.url)
        load.wait_for_result_after(time.monotonic())
        load.finish()
        with Client(agent.url) as client:
            assert str(agent.config_file) in client.status()["not_taken_over"][0]
    finally:
        agent.write_config()


def test_a_box_whose_files_are_cleaned_away_still_brings_its_processes_back(
    agent: RunningAgent,
) -> None:
    """As somebody who makes room in /tmp or empties the state folder may do."""
    (token,) = agent.folder.glob("state/ray_token")
    secret = token.read_text()
    shutil.rmtree(token.parent, ignore_errors=True)  # the box may write there meanwhile
    eventually(token.exists)
    assert token.read_text() == secret
    assert token.stat().st_mode & 0o777 == 0o600
    since = len(agent.lines)
    load = Load(agent.url)
    load.wait_for_result_after(0)
    lost = agent.pid_of("WorkerProcess")
    os.kill(lost, signal.SIGKILL)
    eventually(partial(says, agent, "its process ended", since))
    # A result may have been on its way at the kill; Ray can start no worker any more after this.
    eventually(partial(has_other_worker, agent, lost))
    load.wait_for_result_after(time.monotonic())

    (run_dir,) = Path(tempfile.gettempdir()).glob(f"laxity-run-{agent.process.pid}-*")
    shutil.rmtree(run_dir)
    load.wait_for_result_after(time.monotonic())
    os.kill(agent.pid_of("WorkerProcess"), signal.SIGKILL)
    eventually(partial(says, agent, f"Ray's sockets in {run_dir}"))
    eventually(partial(serves_again, agent, since))
    load.wait_for_result_after(time.monotonic())
    load.finish()


@pytest.mark.parametrize(
    ("send", "number"), [(os.killpg, signal.SIGTERM), (os.kill, signal.SIGHUP)]
)
def test_the_agent_drains_what_it_accepted_and_leaves_no_process(
    agent: RunningAgent, send: Callable[[int, int], None], number: int
) -> None:
    with Client(agent.url) as client:
        slow = {"x": np.ones((1, 1), np.float32)}
        futures = [client.submit("slow", slow, deadline_ms=30_000) for _ in range(6)]
        futures[0].result()
        send(agent.process.pid, number)
        status = agent.process.wait(60)
        assert [future.result().outcome for future in futures] == ["completed"] * 6
    assert status == 0
    assert agent.left_over() == []
    assert not Path(agent.url.removeprefix("unix://")).exists()


def test_a_signal_as_it_starts_over_ends_it_and_leaves_nothing(agent: RunningAgent) -> None:
    since = len(agent.lines)
    agent.named("raylet").kill()
    eventually(partial(says, agent, "starting over", since))
    assert agent.stop() == 0
    assert agent.left_over() == []
    assert not Path(agent.url.removeprefix("unix://")).exists()
    assert list(Path(tempfile.gettempdir()).glob(f"laxity-run-{agent.process.pid}-*")) == []


def test_a_drain_whose_scheduler_dies_says_what_is_lost(agent: RunningAgent) -> None:
    path = Path(agent.url.removeprefix("unix://"))
    with Client(agent.url) as client:
        slow = {"x": np.ones((1, 1), np.float32)}
        futures = [client.submit("slow", slow, deadline_ms=600_000) for _ in range(1000)]
        futures[0].result()
        agent.process.send_signal(signal.SIGTERM)
        eventually(lambda: not is_answered(str(path)))  # closed first by the drain
        os.kill(agent.pid_of("SchedulerProcess"), signal.SIGKILL)
        assert agent.process.wait(60) == 1
    assert agent.left_over() == []
    assert not path.exists()
    (told,) = [line for line in agent.lines if "the scheduler ended during the drain" in line]
    held = re.search(r"held at the start \((\d+)\), those not answered by then are lost", told)
    assert held is not None
    assert 0 < int(held[1]) < 1000


def test_a_second_signal_ends_it_at_once(agent: RunningAgent) -> None:
    with Client(agent.url) as client:
        slow = {"x": np.ones((1, 1), np.float32)}
        futures = [client.submit("slow", slow, deadline_ms=600_000) for _ in range(1000)]
        futures[0].result()
        # What follows at once is the first one's echo; both come when it goes on.
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            agent.process.send_signal(number)
        eventually(partial(says, agent, "Draining"))
        threading.Event().wait(0.5)
        assert agent.process.poll() is None
        assert agent.stop() == 1
        assert not futures[-1].done()
    assert agent.left_over() == []


def test_no_process_outlives_a_killed_agent(agent: RunningAgent) -> None:
    assert len(agent.processes()) > 3
    agent.process.kill()
    agent.process.wait()
    assert agent.left_over() == []


def test_a_scheduler_that_is_brought_back_does_without_a_policy_that_has_gone(
    special: Lives,
) -> None:
    agent = special.current()
    file, readers = agent.folder / "own.py", agent.folder / "readers"
    load = Load(agent.url, token=TOKEN)
    load.wait_for_result_after(0)
    scheduler = agent.pid_of("SchedulerProcess")
    assert readers.read_text().split().count(str(scheduler)) == 1, "it is made once"
    with away(file):
        os.kill(scheduler, signal.SIGKILL)
        load.wait_for_result_after(time.monotonic())
        # That may have been on its way at the kill, and a busy machine takes longer to be back.
        with Client(agent.url, token=TOKEN, connect_timeout_s=60) as client:
            status = client.status()
        assert status["policy"]["name"] == "goodput"
        assert f"there is no file {file}" in status["policy_problem"]
    with Client(agent.url, token=TOKEN) as client:
        agent.config_file.touch()
        eventually(lambda: client.status()["policy"]["name"] == str(file))
        assert client.status()["policy_problem"] is None
        agent.write_config(policy={"name": "goodput"})
        eventually(lambda: client.status()["policy"]["name"] == "goodput")
    load.finish()
    assert not says(agent, "DeprecationWarning")


def test_what_an_actor_lacks_when_it_is_brought_back_may_come_later(special: Lives) -> None:
    agent = special.current()
    load = Load(agent.url, token=TOKEN)
    load.wait_for_result_after(0)
    lacks = agent.folder / "models"
    with away(lacks):
        os.kill(agent.pid_of("WorkerProcess"), signal.SIGKILL)
        eventually(partial(says, agent, f"can't start again: model repository {lacks}: "))
    load.wait_for_result_after(time.monotonic())
    load.finish()


def test_what_ends_while_a_token_is_away_is_brought_back_with_the_last_one(special: Lives) -> None:
    agent = special.current()
    load = Load(agent.url, token=TOKEN)
    load.wait_for_result_after(0)
    with away(agent.folder / "token"):
        os.kill(agent.pid_of("SchedulerProcess"), signal.SIGKILL)
        eventually(partial(says, agent, "tokens not applied"))
        load.wait_for_result_after(time.monotonic())
        with Client(agent.url, token=TOKEN) as client:
            assert str(agent.folder / "token") in client.status()["not_taken_over"][0]
    load.finish()


def test_what_is_submitted_while_the_box_starts_again_waits_until_its_model_is_loaded(
    special: Lives,
) -> None:
    agent = special.current()
    with Client(agent.url, token=TOKEN) as client:
        agent.end()
        futures = [client.submit(name, X, deadline_ms=60_000) for name in RELUS]
        special.current()
        assert [future.result(60).outcome for future in futures] == ["completed"] * len(RELUS)


def test_a_batch_that_never_ends_costs_its_device_seconds(special: Lives) -> None:
    agent = special.current()

    def lost() -> list[str]:
        return [line for line in agent.lines if "target lost" in line]

    before = len(lost())
    with Client(agent.url, token=TOKEN) as client:
        few = client.infer("counts", {"rounds": np.array([3])}, deadline_ms=5_000)
        assert few["y"].tolist() == [3]
        with pytest.raises(DeadlineExpired):
            client.infer("counts", {"rounds": np.array([10**15])}, deadline_ms=200)
        while True:
            with contextlib.suppress(RequestEnded):
                result = client.infer("relu", X, deadline_ms=500)
                break
            threading.Event().wait(0.02)
    eventually(lambda: len(lost()) > before)  # Ray passes it on in its own time, and not at the end
    agent.end()
    assert result["y"].tolist() == [0, 0, 2]
    (told,) = lost()[before:]
    assert "a batch of 1 of counts/only has run for" in told


@pytest.mark.parametrize("started", ["edge_agent.probing", "raylet", "ray::WorkerProcess"])
def test_a_signal_while_it_starts_ends_it_well(models: Path, tmp_path: Path, started: str) -> None:
    config = tmp_path / "edge.yaml"
    listen = {"native": f"unix://{tmp_path}/s.sock"}
    settings = {"models": str(models), "state_dir": str(tmp_path / "state"), "listen": listen}
    config.write_text(yaml.safe_dump(settings))
    with agent_process(config) as (agent, run):
        while not any(started in command(p) for p in processes_of(run)):
            assert agent.poll() is None
            threading.Event().wait(0.02)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(90) == 0
        _, alive = psutil.wait_procs(processes_of(run), timeout=15)
        assert alive == []
    assert list(Path(tempfile.gettempdir()).glob(f"laxity-run-{agent.pid}-*")) == []


def test_a_box_without_models_says_so_and_heeds_its_command_line(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    config = tmp_path / "edge.yaml"
    url = f"unix://{tmp_path}/s.sock"
    text = f"models: /nowhere\nstate_dir: {tmp_path}/state\nlisten: {{native: '{url}'}}\n"
    config.write_text(text)
    with agent_process(config, "--models", str(tmp_path / "models")) as (agent, _):
        assert agent.stderr is not None
        said: list[str] = []
        for line in agent.stderr:  # what a process of Ray's logs comes by way of Ray, when it will
            said.append(line)
            ready = any(line.startswith("Ready.") for line in said)
            if ready and "worker connected" in "".join(said):
                break
        shown = subprocess.run(
            [sys.executable, "-m", "scheduler.cli", "status", "--url", url],
            capture_output=True,
            text=True,
            timeout=60,
        )
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=60)
    assert any(f"There is no model in {tmp_path / 'models'}:" in line for line in said)
    assert "it has no model" in shown.stdout
    assert not [line for line in said if "changes wait for the next start" in line]
    logged = [line for line in said if "worker connected" in line]
    assert [json.loads(line)["device"] for line in logged] == ["cpu:0"]
