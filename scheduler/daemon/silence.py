"""Explains why a process of this machine is silent: stopped, waiting, or busy."""

from __future__ import annotations

from workers.kernel_files import Standing


def why_silent(pid: int, before: Standing | None, now: Standing | None) -> str:
    """The likely reason why a process is silent, for people.

    Args:
        pid: The process.
        before: Its state a while ago.
        now: Its state now.
    """
    if now is None or before is None:
        return "its process says nothing; is it stopped?"
    if now.state in "Tt":
        return f"its process is stopped; kill -CONT {pid} lets it go on"
    if now.cpu_ticks > before.cpu_ticks:
        return "its process computes and says nothing; a library may be holding Python's lock"
    if now.state == "D":
        return "its process waits for a disk or a driver that doesn't answer, and says nothing"
    return "its process waits for something, and says nothing"
