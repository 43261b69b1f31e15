"""Control groups: those this process is in, and those that the box lets us create.

Those we create are of version 2. By the rules of the kernel's cgroup-v2.rst, a group can delegate
controllers to its children only while it holds no process itself, so the agent moves into a leaf
group before it delegates any. Under systemd that needs `Delegate=yes`, and in a container a
writable `/sys/fs/cgroup`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from workers.kernel_files import text_of

_LEAF = "laxity-agent"


class ControlGroupError(Exception):
    """A control group is not available; the message says why."""

    def __init__(self, why: object) -> None:
        super().__init__(f"no control group: {why}")


def hand_on_controllers(root: Path = Path("/")) -> None:
    """Delegate the memory controller to sibling groups; called by the agent at its start.

    The process moves into a leaf below its group. It must be alone in that group, as a service is;
    a shell that started it, for example, must not end up in a group of ours.

    Raises:
        ControlGroupError: This process lacks the right, is not alone, or has no version 2 group.
    """
    group = _own_group(root)
    own = str(os.getpid())
    try:
        if (group / "cgroup.procs").read_text("ascii").split() != [own]:
            raise ControlGroupError("other processes share the group of this one")
        leaf = group / _LEAF
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text(own, "ascii")
        (group / "cgroup.subtree_control").write_text("+memory", "ascii")
    except OSError as error:
        raise ControlGroupError(error) from error


def join_group(name: str, memory_bytes: int, root: Path) -> Path:
    """Move this process into its own group with a memory limit.

    Args:
        name: Names the group; valid as a file name.
        memory_bytes: The group's memory limit; the kernel kills a process that exceeds it.
        root: Where `/proc` and `/sys` are found.

    Returns:
        The group's folder.

    Raises:
        ControlGroupError: The controller is not delegated, or this process lacks the right.
    """
    group = _own_group(root)
    parent = group.parent if group.name == _LEAF or group.name.startswith("laxity-") else group
    try:
        granted = (parent / "cgroup.subtree_control").read_text("ascii").split()
        if "memory" not in granted:
            raise ControlGroupError("the memory controller is not delegated")
        own = parent / f"laxity-{name}"
        own.mkdir(exist_ok=True)
        (own / "memory.max").write_text(str(memory_bytes), "ascii")
        (own / "cgroup.procs").write_text(str(os.getpid()), "ascii")
    except OSError as error:
        raise ControlGroupError(error) from error
    return own


def own_groups(root: Path, controller: str) -> Iterator[Path]:
    """This process's groups with a controller, of both versions, and their ancestors.

    Args:
        root: Where `/proc` and `/sys` are found.
        controller: For example `cpu`; a version 2 group may lack its files.
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
        raise ControlGroupError(error) from error
    for line in lines:
        number, _, path = line.split(":", 2)
        if number == "0":
            return root / "sys/fs/cgroup" / path.lstrip("/")
    raise ControlGroupError("this box has only version 1")
