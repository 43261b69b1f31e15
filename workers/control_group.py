"""Control groups: those that this process is in, and those that this box lets us make.

The latter are of version 2. The rules are those of the kernel's cgroup-v2.rst: a group hands
controllers on to its children only while it holds no process itself, so the agent moves into a leaf
before it hands any on. Under systemd that needs `Delegate=yes`, and in a container a writable
`/sys/fs/cgroup`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from workers.kernel_files import text_of

_LEAF = "laxity-agent"


class ControlGroupError(Exception):
    """A control group cannot be had; the message says why."""


def hand_on_controllers(root: Path = Path("/")) -> None:
    """Let groups beside this process's limit what is in them; for the agent, at its start.

    The process moves into a leaf below its group. It must be alone there, as a service is: the
    shell that it was started from, say, has no business in a group of ours.

    Raises:
        ControlGroupError: This process may not or is not alone, or there is no version 2.
    """
    group = _own_group(root)
    own = str(os.getpid())
    try:
        if (group / "cgroup.procs").read_text("ascii").split() != [own]:
            raise ControlGroupError("no control group: other processes share this one's")
        leaf = group / _LEAF
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(own, "ascii")
        (group / "cgroup.subtree_control").write_text("+memory", "ascii")
    except OSError as error:
        raise ControlGroupError(f"no control group: {error}") from error


def join_group(name: str, memory_bytes: int, root: Path = Path("/")) -> Path:
    """Move this process into a group of its own with a memory limit.

    Args:
        name: Names the group; valid as a file name.
        memory_bytes: The most memory that the group may take; beyond it, the kernel kills.
        root: Where `/proc` and `/sys` are found.

    Returns:
        The group's folder.

    Raises:
        ControlGroupError: Nobody has handed the controller on, or this process may not.
    """
    group = _own_group(root)
    parent = group.parent if group.name == _LEAF or group.name.startswith("laxity-") else group
    try:
        granted = (parent / "cgroup.subtree_control").read_text("ascii").split()
        if "memory" not in granted:
            raise ControlGroupError("no control group: the memory controller is not handed on")
        own = parent / f"laxity-{name}"
        own.mkdir(exist_ok=True)
        (own / "memory.max").write_text(str(memory_bytes), "ascii")
        (own / "cgroup.procs").write_text(str(os.getpid()), "ascii")
    except OSError as error:
        raise ControlGroupError(f"no control group: {error}") from error
    return own


def own_groups(root: Path, controller: str) -> Iterator[Path]:
    """This process's groups with a controller, of both versions, and those around them.

    Args:
        root: Where `/proc` and `/sys` are found.
        controller: Such as `cpu`; a group of version 2 may lack its files.
    """
    for line in (text_of(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        folder = mount / path.lstrip("/")
        yield folder
        yield from (parent for parent in folder.parents if parent.is_relative_to(mount))


def _own_group(root: Path) -> Path:
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError as error:
        raise ControlGroupError(f"no control group: {error}") from error
    for line in lines:
        number, _, path = line.split(":", 2)
        if number == "0":
            return root / "sys/fs/cgroup" / path.lstrip("/")
    raise ControlGroupError("no control group: this box has version 1 alone")
