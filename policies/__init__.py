"""The rules that decide. One file per policy; the configuration names one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from policies.edf import Edf
from policies.fcfs import Fcfs
from policies.goodput import Goodput
from scheduler.core.policy import Policy

POLICIES: dict[str, Callable[..., Policy]] = {"edf": Edf, "fcfs": Fcfs, "goodput": Goodput}
"""Factory of each policy, by its name in the configuration."""

DEFAULT = "goodput"


def make_policy(name: str, **options: Any) -> Policy:
    """A policy by name.

    Args:
        name: A key of `POLICIES`.
        options: The policy's own options.

    Raises:
        ValueError: No such policy, or not an option of it.
    """
    factory = POLICIES.get(name)
    if factory is None:
        raise ValueError(f"policy {name!r} is not known; there are {', '.join(sorted(POLICIES))}")
    try:
        return factory(**options)
    except TypeError as error:
        raise ValueError(f"policy {name!r}: {error}") from None
