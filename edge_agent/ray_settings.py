"""What Ray reads from the environment when it is imported; this comes before any import of it."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from edge_agent.state_lock import made
from scheduler.files import replace_file


def set_ray_environment(state_dir: Path) -> None:
    """Turns Ray's token authentication on, with a token of the box's own, and its telemetry off.

    Ray's own figures of its processes, which nobody reads here, are not gathered unless somebody
    asks for them: they were a tenth of what an idle box takes of a processor.

    Ray runs actors at nice 15 unless told otherwise, behind everything else on the box; these
    have deadlines. Ray listens on every interface unless it is told that this box is all there is
    (by a variable that was made for other systems, and means the same on this one).

    What its processes write is passed on as it is, without Ray's prefix and colours and without
    merging lines that are alike: each line of the log is JSON.

    A token that the environment names already, to join others' cluster, is kept.

    Args:
        state_dir: Where the token is kept; made if need be.

    Raises:
        AgentError: It can't be written there.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (that is its name)
    os.environ.setdefault("RAY_enable_metrics_collection", "0")
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # then it stays on loopback
    os.environ["RAY_DISABLE_WORKER_LOG_PREFIX"] = "1"
    os.environ["RAY_DEDUP_LOGS"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(_token_file(state_dir))


def _token_file(state_dir: Path) -> Path:
    path = state_dir / "ray_token"
    with made(state_dir):
        # A box that was switched off soon after its first start may have left it empty, and a disk
        # that fails anything; Ray would end the agent without a word of this file.
        if not path.exists() or not re.fullmatch(r"[!-~]+\s*", path.read_text(errors="replace")):
            replace_file(path, secrets.token_hex(32), durable=True, mode=0o600)
    return path
