"""Keep Ray from starting processes that no box needs, or not yet; that saves a second and 200 MB.

Ray has no option for this, and what is replaced here is private. Where a later version names it
otherwise, the processes do start.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import psutil

_STARTED_BY = {
    "start_monitor": "autoscaler/_private/monitor.py",
    "start_api_server": "dashboard/dashboard.py",
}
"""Processes for autoscaling and the dashboard, keyed by the method of Ray's `Node` that starts
each."""

_AGENT = "dashboard_agent_command"
"""The node manager's option for the helper that tells the dashboard about this machine."""

_STAND_IN = (
    "import os, select; manager = os.getppid(); watched = os.pidfd_open(manager); "
    "os.readlink(f'/proc/{manager}/exe').endswith('/raylet') and select.select([watched], [], [])"
)
"""Runs in the helper's place, without whose process the node manager would end, and ends with it,
also if that has ended before."""

_LATER = "runtime_env_agent_command"
"""The node manager's option for the helper that prepares environments that callers in Ray's cluster
may ask for (`runtime_env`). A box asks for none."""

_UNTIL_ASKED = (
    "import os, select, socket, sys; manager = os.getppid(); watched = os.pidfd_open(manager); "
    "door = socket.create_server((sys.argv[1], int(sys.argv[2]))); "
    "asked = os.readlink(f'/proc/{manager}/exe').endswith('/raylet') "
    "and select.select([watched, door], [], [])[0]; "
    "door.close(); asked == [door] and os.execv(sys.argv[3], sys.argv[3:])"
)
"""Runs in that helper's place until the first time that somebody connects, which is tried again."""

_END_S = 8.0


@contextlib.contextmanager
def nothing_needless() -> Iterator[None]:
    """Keep Ray from starting needless processes within the block."""
    with contextlib.ExitStack() as replaced:
        for method in _STARTED_BY:
            replaced.enter_context(_replaced("node", "Node", method, by=lambda _: _do_nothing))
        # Ray's metrics need the helper, but they are off unless the environment turns them on.
        if os.environ.get("RAY_enable_metrics_collection") == "0":  # noqa: SIM112 (that's its name)
            replaced.enter_context(_replaced("services", "start_ray_process", by=_without_agent))
            # This imports all that the helper would, to see whether it can.
            name = "get_dashboard_dependency_error"
            replaced.enter_context(_replaced("utils", name, by=lambda _: _do_nothing))
        yield


@contextlib.contextmanager
def _replaced(module: str, *names: str, by: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a function of a private module of Ray within the block, if it is there."""
    owner = sys.modules.get(f"ray._private.{module}")
    for name in names[:-1]:
        owner = getattr(owner, name, None)
    own = getattr(owner, names[-1], None)
    if own is not None:
        setattr(owner, names[-1], by(own))
    try:
        yield
    finally:
        if own is not None:
            setattr(owner, names[-1], own)


def _do_nothing(*_: Any, **__: Any) -> None:
    """Takes any arguments."""


def end_needless() -> None:
    """End the needless processes that Ray has started all the same."""
    needless = tuple(_STARTED_BY.values())
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(word.endswith(needless) for word in process.cmdline()):
                process.kill()
                process.wait(_END_S)


def _without_agent(start: Callable[..., Any]) -> Callable[..., Any]:
    def start_part(command: list[str], process_type: str, *args: Any, **named: Any) -> Any:
        if process_type == "raylet":
            with contextlib.suppress(AttributeError, KeyError):  # in another version
                command = _stood_in(command)
        return start(command, process_type, *args, **named)

    return start_part


def _stood_in(command: list[str]) -> list[str]:
    """The command of a node manager whose helper does nothing, and says that it has no ports."""
    private = sys.modules["ray._raylet"]
    given = dict(
        word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word
    )
    ports = (
        private.DASHBOARD_AGENT_LISTEN_PORT_NAME,
        private.METRICS_AGENT_PORT_NAME,
        private.METRICS_EXPORT_PORT_NAME,
    )
    for port in ports:
        private.persist_port(given["session_dir"], given["node_id"], port, -1)
    others = [word for word in command if not word.startswith((f"--{_AGENT}=", f"--{_LATER}="))]
    later = _until_asked(given, private)
    return [*others, _option(_AGENT, _STAND_IN), _option(_LATER, _UNTIL_ASKED, *later)]


def _until_asked(given: dict[str, str], private: Any) -> list[str]:
    """What a helper needs that begins later: its host, its port, and its command with that port."""
    host, command = given["node_ip_address"], shlex.split(given[_LATER])
    with socket.create_server((host, 0)) as free:
        port = str(free.getsockname()[1])
    private.persist_port(
        given["session_dir"], given["node_id"], private.RUNTIME_ENV_AGENT_PORT_NAME, int(port)
    )
    named = [word for word in command if not word.startswith("--runtime-env-agent-port=")]
    return [host, port, *named, f"--runtime-env-agent-port={port}"]


def _option(name: str, program: str, *words: str) -> str:
    helper = subprocess.list2cmdline([sys.executable, "-I", "-S", "-c", program, *words])
    return f"--{name}={helper}"
