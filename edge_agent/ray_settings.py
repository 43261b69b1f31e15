"""Set the environment that Ray reads at import; call this before any import of Ray."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from edge_agent.state_lock import made
from scheduler.files import replace_file

_QUIET = {
    "RAY_event_stats": "0",
    "RAY_event_stats_print_interval_ms": "3600000",
    "RAY_ROTATION_MAX_BYTES": "4000000",
    "RAY_ROTATION_BACKUP_COUNT": "1",
}
"""Ray's log files without statistics of its event loops, with its state once an hour instead of
once a minute, and cut at 4 MB, of which the part before is kept once."""


def set_ray_environment(state_dir: Path) -> None:
    """Turn Ray's token authentication on, with the box's own token, and its telemetry off.

    Ray's metrics of its own processes, which nobody reads here, stay off unless the environment
    turns them on: they took a tenth of an idle box's CPU use.

    By default Ray runs actors at nice 15, behind everything else on the box, but these actors have
    deadlines. By default Ray listens on every interface; a variable meant for other operating
    systems makes it assume a single box, on Linux too.

    The output of its processes is passed on unchanged, without Ray's prefix and colours and without
    merging similar lines, because each line of the log is JSON. Only what the raylet says, such as
    that a process was killed, begins with `(raylet)`.

    By default Ray kills actors while the machine, or the container, uses more than 95 % of its
    memory, whoever has taken it, and again as soon as they are back: a box beside a program that
    needs much would serve nobody. Without that the kernel decides, and only when there is no more.

    Its own log files are in /tmp, which may be in memory. On an idle box they grew by 95 MB a day,
    nearly all of it statistics once a minute, and would be cut only at 512 MB each.

    A token already named in the environment, to join another cluster, is kept.

    Args:
        state_dir: The folder for the token; created if needed.

    Raises:
        AgentError: The token can't be written there.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (that is its name)
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    os.environ.setdefault("RAY_enable_metrics_collection", "0")
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # then it stays on loopback
    os.environ["RAY_DISABLE_WORKER_LOG_PREFIX"] = "1"
    os.environ["RAY_COLOR_PREFIX"] = "0"
    os.environ["RAY_DEDUP_LOGS"] = "0"
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    os.environ["RAY_AUTH_MODE"] = "token"
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(_token_file(state_dir))


def _token_file(state_dir: Path) -> Path:
    path = state_dir / "ray_token"
    with made(state_dir):
        # The file may be empty after a power cut soon after the first start, or hold anything after
        # a disk failure; Ray would then end the agent without mentioning it.
        if not path.exists() or not re.fullmatch(r"[!-~]+\s*", path.read_text(errors="replace")):
            replace_file(path, secrets.token_hex(32), durable=True, mode=0o600)
    return path
