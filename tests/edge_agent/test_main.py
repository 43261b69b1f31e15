"""`edge_agent` where it can't start: what it says, and what it leaves alone."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_agent.errors import AgentError
from edge_agent.state_lock import made
from tests.edge_agent.forked import Forking


def started(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "edge_agent", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def told_by(ended: subprocess.CompletedProcess[str]) -> str:
    """What it says of a configuration that it can't serve."""
    assert ended.returncode in (1, 2)
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]


@pytest.fixture(scope="module")
def edge_agent(tmp_path_factory) -> Iterator[Forking]:
    """The command, run in much less time than `started` takes."""
    forking = Forking(tmp_path_factory.mktemp("forking"))
    yield forking
    forking.close()


@pytest.fixture
def refusal(edge_agent) -> Callable[[Path], str]:
    return lambda config: told_by(edge_agent("--config", str(config)))


@pytest.fixture
def write(tmp_path):
    def write_file(text: str) -> Path:
        (tmp_path / "models").mkdir()
        path: Path = tmp_path / "edge.yaml"
        path.write_text(f"state_dir: state\n{text}")
        return path

    return write_file


def test_a_life_after_another_waits_for_what_it_lacks_until_a_signal(write, tmp_path):
    config = write("polcy: edf")
    with subprocess.Popen(
        [sys.executable, "-m", "edge_agent", "--config", str(config)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"LAXITY_AGENT_SHORT_LIVES": "0"},
    ) as agent:
        try:
            assert agent.stderr is not None
            told = agent.stderr.readline()
            assert told.startswith(f"{config}:2: polcy: ")
            assert agent.stderr.readline() == "Trying once more in 3 s.\n"
            (tmp_path / "models").rmdir()
            config.write_text("state_dir: state")  # mended, but now there are no models
            told = f"the model repository {tmp_path / 'models'}: there is no such folder; name one"
            assert any(line.startswith(told) for line in agent.stderr)
            assert agent.stderr.readline() == "Trying once more in 3 s.\n"
            agent.terminate()
            assert agent.wait(60) == 0
        finally:
            agent.kill()


def test_a_file_where_a_socket_should_be_is_left_alone(write, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("of somebody")
    told = told_by(started("--config", str(write(f"listen: {{native: 'unix://{notes}'}}"))))
    assert told == f"can't listen on unix://{notes}: {notes} exists and is not a socket"
    assert notes.read_text() == "of somebody"


def test_a_socket_where_no_folder_can_be_is_told(refusal, write, tmp_path):
    place = tmp_path / "edge.yaml" / "s"
    told = refusal(write(f"listen: {{native: 'unix://{place}'}}"))
    assert told == f"can't listen on unix://{place}: the folder can't be made: File exists"


@pytest.mark.parametrize("door", ["native", "http", "grpc"])
def test_a_folder_that_takes_no_sockets_is_told_before_anything_starts(
    refusal, write, tmp_path, door
):
    places = {"native": f"unix://{tmp_path}/s", door: "unix:///proc/s"}
    told = refusal(write(f"listen: {json.dumps(places)}"))
    assert told == "can't listen on unix:///proc/s: No such file or directory"


@pytest.mark.parametrize("door", ["native", "http", "grpc"])
def test_a_port_that_somebody_has_is_told_before_anything_starts(refusal, write, tmp_path, door):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as a gRPC server has it
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        listen = {"native": f"unix://{tmp_path}/s", door: f"tcp://127.0.0.1:{port}"}
        told = refusal(write(f"listen: {json.dumps(listen)}"))
    remedy = "stop what uses it (`laxity doctor --config FILE` names it), or listen elsewhere"
    assert told == f"can't listen on tcp://127.0.0.1:{port}: Address already in use; {remedy}"


def test_an_address_of_another_machine_is_told(refusal, write, tmp_path):
    (tmp_path / "token").write_text("5" * 64)
    (tmp_path / "token").chmod(0o600)
    told = refusal(write("listen: {native: 'tcp://192.0.2.1:8702'}\ntoken_file: token"))
    assert told == "can't listen on tcp://192.0.2.1:8702: Cannot assign requested address"


def test_a_state_dir_that_can_not_be_written_to_is_told(refusal, tmp_path):
    file = tmp_path / "edge.yaml"
    file.write_text(f"state_dir: {file}")
    assert refusal(file) == (
        f"the state folder {file} can't be written: File exists; let this user write there, or "
        "set another state_dir"
    )


def test_a_state_dir_on_a_full_disk_needs_room(tmp_path):
    told = "the state folder .* can't be written: No space left on device; make room there, or set"
    with pytest.raises(AgentError, match=told), made(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_too_few_open_files_are_told_before_anything_starts(write):
    config = write("limits: {connections: 500}")
    command = f"ulimit -n 64; exec {sys.executable} -m edge_agent --config {config}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "this shell or service may have 64 files open; the agent needs 256, and one more for each "
        "client at once, 756 with limits.connections: 500. Raise that by `ulimit -n 756`, or "
        "LimitNOFILE=756 in a systemd service"
    )


def test_a_soft_limit_of_open_files_is_raised_to_what_clients_need():
    tried = """
import resource
from edge_agent.open_files import allow_open_files
for connections in (10, 44, 400, 10**6):
    allow_open_files(connections)
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    command = f"ulimit -Sn 300; ulimit -Hn 500; exec {sys.executable} -c '{tried}'"
    said = subprocess.check_output(["sh", "-c", command], text=True)
    assert said.splitlines() == ["300 500", "388 500", "500 500", "500 500"]


def test_brackets_in_what_is_wrong_are_shown(refusal, tmp_path):
    file = tmp_path / "[blue]" / "edge.yaml"
    file.parent.mkdir()
    file.write_text("site: '[/b] pip install laxity[gpu]'")
    assert refusal(file).startswith(f"{file}:1: site: '[/b] pip install laxity[gpu]' should be")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("policy: {name: nope}", "{config}:2: policy: policy 'nope' is not known; there are "),
        ("devices: [{id: cpu:0, options: {a: 1}}]", "{config}:2: devices[0]: cpu:0: unknown opt"),
        ("tls: {cert: gone, key: edge.yaml}", "{gone}: tls.cert: can't be read: No such file"),
        ("token_file: gone", "{gone}: token_file: can't be read: No such file"),
        (
            "cloud: [{name: eu, url: 'https://h', token_file: gone}]",
            "{gone}: token_file: can't be read: No such file",
        ),
        (
            "cloud: [{name: eu, url: 'grpcs://h:1', tls: {ca: gone}}]",
            "cloud 'eu': tls: {gone}: can't be read: No such file",
        ),
        ("tenants_file: gone", "{gone}: tenants_file: can't be read: No such file"),
    ],
)
def test_what_a_configuration_names_is_tried_before_anything_is_started(
    refusal, write, tmp_path, text, told
):
    config = write(text)
    wanted = told.format(config=config, gone=tmp_path / "gone")
    assert refusal(config).startswith(wanted)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("policy: {name: goodput, quantil: 0.9}", 2),
        ("devices: [{id: cpu:0, options: {a: 1}}]\ntoken_file: gone", 2),
        ("token_file: gone", 1),
    ],
)
def test_a_service_is_not_started_again_for_what_only_an_edit_can_mend(
    edge_agent, write, text, status
):
    """The unit in `deploy` has RestartPreventExitStatus=2."""
    assert edge_agent("--config", str(write(text))).returncode == status


def test_an_option_that_would_do_nothing_is_refused(edge_agent, tmp_path):
    ended = edge_agent("--json", "--models", str(tmp_path))
    assert ended.returncode == 2
    assert ended.stderr.startswith("--json works only with --probe")
    for words in (("--config", "none.yaml"), ("--models", str(tmp_path)), ("--join", "a:1")):
        ended = edge_agent("--probe", *words)
        assert ended.returncode == 2
        assert ended.stderr.startswith("--probe works without a configuration: leave out --config")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("edge.yaml",), "unexpected 'edge.yaml'; a configuration is given as --config FILE"),
        (("--config", "/dev/null"), "--config /dev/null: must be a regular file"),
        (("--models", "nowhere"), "--models nowhere: there is no such folder"),
        # Looked at, a name that is too long fails as one in a folder that may not be entered.
        (("--models", "n" * 300), f"--models {'n' * 300}: can't be read: File name too long"),
        (("--config", "n" * 300), f"{'n' * 300}: can't be read: File name too long"),
        (("--join", "box-a"), "--join box-a: 'tcp://box-a' lacks a port: tcp://HOST:PORT"),
        (("--join", "a:1", "--join", "b:0"), "--join b:0: 'b:0' is not where another machine li"),
    ],
)
def test_a_command_line_that_can_not_be_served_is_status_2(edge_agent, words, told):
    ended = edge_agent(*words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(told)


def test_a_file_for_the_cloud_is_told_apart(refusal):
    config = Path(__file__).parents[2] / "configs" / "cloud.yaml"
    assert "looks like a file for `laxity cloud up`, not for a box" in refusal(config)


def test_no_folder_is_not_the_one_where_it_was_started(edge_agent):
    ended = edge_agent("--models", "")
    assert ended.returncode == 2
    assert "it is empty" in ended.stderr


def test_ctrl_c_while_the_command_is_loaded_leaves_no_traceback(tmp_path, monkeypatch):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    found = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", found)
    ended = started("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_the_version(laxity):
    assert started("--version").stdout == laxity("--version")[1]


def test_a_line_is_not_part_of_one_that_another_thread_prints():
    script = """
import sys
from edge_agent.terminal import whole_lines
console = whole_lines()
sys.stderr.write("what a worker logs")
console.print("Ready.")
sys.stderr.write("\\n")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert ended.stderr == "Ready.\nwhat a worker logs\n"


def test_a_box_goes_on_when_nobody_reads_what_it_says():
    script = """
import os, sys
from edge_agent.terminal import whole_lines
console = whole_lines()
read, write = os.pipe()
os.dup2(write, 2)
os.close(read)
console.print("Draining")
print("a door ended", file=sys.stderr)
print("goes on")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "goes on\n")


def test_a_box_goes_on_while_what_it_says_is_not_read_and_then_tells_how_much_is_missing():
    """As on a terminal after Ctrl-S, or with a collector of logs that hangs."""
    script = """
import os, sys
from edge_agent import terminal
terminal._PATIENCE_S = 0.01
console = terminal.whole_lines()
read, write = os.pipe()
os.dup2(write, 2)
for number in range(30_000):
    print("a door ended", file=sys.stderr)
console.print("Draining")
os.read(read, 1 << 20)
console.print("drained")
print("a door ended", file=sys.stderr)
print(os.read(read, 1 << 20).decode(), end="")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith("a door ended\n")
    assert "drained\n" in ended.stdout
    missing = [line for line in ended.stdout.splitlines() if line.startswith("(")]
    assert len(missing) == 2, "both of its files have lost some"
    assert (
        missing[0] == f"({len('Draining') + 1} bytes of output are missing here: nobody read them)"
    )
    assert int(missing[1][1:].split()[0]) + (1 << 16) >= 30_000 * len("a door ended\n")


def test_a_process_without_stderr_says_what_it_was_asked():
    command = f"exec {sys.executable} -m edge_agent --probe 2>&-"
    ended = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True)
    assert ended.returncode == 0
    assert ended.stdout.startswith("CPU")
