"""Every command and the Python example of the README, run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines()
]
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.S)

INSTALLING = "pip install '.[cpu]'"
DAEMON = "edge_agent --models configs/models"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A user's own, with the scripts of this environment on the path and nothing of theirs."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "run").mkdir(mode=0o700)
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "LAXITY_STATE_DIR": str(folder / "state"),
    }


@pytest.fixture(scope="module")
def daemon(environment: dict[str, str]) -> Iterator[None]:
    """What the README tells to start, until it says that it is ready."""
    with subprocess.Popen(
        shlex.split(DAEMON), cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("Ready."):
                break
        else:
            pytest.fail("the agent did not get ready:\n" + "".join(said))
        yield
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


def run(command: str, environment: dict[str, str], folder: Path) -> str:
    for _ in range(10):
        done = subprocess.run(
            shlex.split(command),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
        )
        # While other tests run, 50 ms may be too little; then that is what a user is told.
        if not done.stderr.startswith(("laxity: expired", "laxity: infeasible")):
            break
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_daemon_command_is_the_one_that_is_tested() -> None:
    assert DAEMON in COMMANDS
    assert INSTALLING in COMMANDS


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_make_commands_have_a_target(command: str) -> None:
    # `make test` is what runs this, and `laxity demo`, all that `make demo` runs, has its own test.
    subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if not c.startswith("make ") and c not in (INSTALLING, DAEMON)]
)
@pytest.mark.usefixtures("daemon")
def test_commands_do_what_they_should(
    command: str, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    assert run(command, environment, tmp_path)


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.usefixtures("daemon")
def test_the_example_prints_an_answer(
    example: str, environment: dict[str, str], tmp_path: Path
) -> None:
    said = run(f"{shlex.quote(sys.executable)} -c {shlex.quote(example)}", environment, tmp_path)
    assert "cpu:0" in said or "not within" in said
