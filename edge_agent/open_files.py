"""How many files and connections the processes of a box may have open."""

from __future__ import annotations

import resource

from edge_agent.errors import AgentError

LEAST = 256
"""Ray's own processes take more than a hundred; with fewer it starts only half, and hangs."""


def allow_open_files(connections: int) -> None:
    """Raises the limit that all processes inherit, as far as it may be, to what the doors need.

    Args:
        connections: As many may be open.

    Raises:
        AgentError: It may not be raised to what is needed at the least.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LEAST + connections
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed < LEAST:
        raise AgentError(
            f"this shell or service may have {hard} files open; the agent needs {LEAST}, and one "
            f"more for each client at once, {wanted} with limits.connections: {connections}. "
            f"`ulimit -n {wanted}` raises that, or LimitNOFILE={wanted} of a systemd service"
        )
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
