"""The limit on open files and connections of a box's processes."""

from __future__ import annotations

import resource

from edge_agent.errors import AgentError
from scheduler.daemon.shared_bodies import FILES_EACH

LEAST = 256
"""Ray's own processes need more than a hundred; with too few, Ray starts partly and hangs."""


def allow_open_files(connections: int) -> None:
    """Raise the limit, which all processes inherit, to what the doors need, as far as allowed.

    Args:
        connections: The number of connections that may be open.

    Raises:
        AgentError: The limit can't even be raised to `LEAST`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LEAST + connections
    best = wanted + FILES_EACH * connections  # so that each client can be lent memory
    allowed = best if hard == resource.RLIM_INFINITY else min(best, hard)
    if allowed < LEAST:
        raise AgentError(
            f"this shell or service may have {hard} files open; the agent needs {LEAST}, and one "
            f"more for each client at once, {wanted} with limits.connections: {connections}. "
            f"Raise that by `ulimit -n {wanted}`, or LimitNOFILE={wanted} in a systemd service"
        )
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
