"""The scheduling policies, one file each; the configuration names one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from typing import Any

from policies.cheapest import Cheapest
from policies.clockwork import Clockwork
from policies.deferred import Deferred
from policies.ect import Ect
from policies.edf import Edf
from policies.edf_admit import EdfAdmit
from policies.fcfs import Fcfs
from policies.goodput import Goodput
from policies.hedge import Hedged
from policies.power_of_two import PowerOfTwo
from policies.proactive_drop import ProactiveDrop
from policies.round_robin import RoundRobin
from policies.slackfit import SlackFit
from policies.spill import Spill
from policies.stability import Stability
from policies.window import Window
from scheduler.core.errors import INTERRUPTIONS, words_of
from scheduler.core.names import hint
from scheduler.core.policy import Policy

PolicyFactory = Callable[..., Policy]
"""Makes a policy from its options."""

POLICIES: dict[str, PolicyFactory] = {
    "cheapest": Cheapest,
    "clockwork": Clockwork,
    "deferred": Deferred,
    "ect": Ect,
    "edf": Edf,
    "edf_admit": EdfAdmit,
    "fcfs": Fcfs,
    "goodput": Goodput,
    "hedge": Hedged,
    "power_of_two": PowerOfTwo,
    "proactive_drop": ProactiveDrop,
    "round_robin": RoundRobin,
    "slackfit": SlackFit,
    "spill": Spill,
    "stability": Stability,
    "window": Window,
}
"""Factory of each policy, by its name in the configuration."""

DEFAULT = "goodput"


def make_policy(name: str, /, **options: Any) -> Policy:
    """Makes a policy of the table by name.

    Args:
        name: A key of `POLICIES`.
        options: The policy's options. A mapping with a `name` among them is itself a policy, which
            the new one wraps.

    Raises:
        ValueError: There is no such policy, or it has no such option.
    """
    return build_policy(name, options, named_policy)


def build_policy(
    name: str, options: Mapping[str, Any], find: Callable[[str], PolicyFactory]
) -> Policy:
    """Makes a policy, with those that it wraps.

    Args:
        name: The policy's name, which `find` knows.
        options: The policy's options. A mapping with a `name` among them is itself a policy; for
            the `inner` of a wrapper the name alone suffices.
        find: Finds a factory by name, or raises `ValueError`.

    Raises:
        ValueError: There is no such policy, it has no such option, or it can't be made with these.
    """
    factory = find(name)
    made = dict(options)
    for key, (inner_name, inner_options) in wrapped(options).items():
        made[key] = build_policy(inner_name, inner_options, find)
    inner = made.get("inner")
    if inner is not None and not hasattr(inner, "decide"):
        told = f"inner is a policy, as edf or {{name: edf, quantile: 0.9}}, not {inner!r}"
        raise ValueError(f"policy {name!r}: {told}")
    _check_options(name, factory, made)
    try:
        policy = factory(**made)
    except ValueError as error:
        raise ValueError(f"policy {name!r}: {error}") from None
    except INTERRUPTIONS:
        raise
    except BaseException as error:  # e.g. a value of the wrong type
        given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        told = f"with {given} it raised {words_of(error)}"
        told += "".join(f"; {key} is a number{usual}" for key, usual in _texts(factory, made))
        raise ValueError(f"policy {name!r}: {told}") from error
    if not hasattr(policy, "decide"):
        told = f"{policy!r:.60}, which has no method 'decide'; is a `return` missing?"
        raise ValueError(f"policy {name!r}: its factory returned {told}")
    return policy


def wrapped(options: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, Any]]]:
    """The options that are themselves policies, with the name and the options of each."""
    found = {}
    for key, value in options.items():
        if isinstance(value, Mapping) and "name" in value:
            own = {str(option): given for option, given in value.items() if option != "name"}
            found[key] = str(value["name"]), own
        elif key == "inner" and isinstance(value, str):
            found[key] = value, {}
    return found


def _check_options(name: str, factory: PolicyFactory, given: Collection[str]) -> None:
    """Checks that a policy takes options with these names, and needs no others.

    Raises:
        ValueError: An option is unknown or missing; the message names the options.
    """
    try:
        parameters = signature(factory).parameters.values()
    except (TypeError, ValueError):
        return  # compiled code may have none; then the call itself says what is wrong
    known = [each.name for each in parameters if each.kind is not Parameter.VAR_POSITIONAL]
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    for key in given:  # first, since one that is missing may be misspelt
        if key not in known and not takes_any:
            raise ValueError(
                f"policy {name!r} has no option {key!r}{hint(key, known)}; "
                f"it has {', '.join(known) or 'none'}"
            )
    for each in parameters:
        by_name = each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        if by_name and each.default is Parameter.empty and each.name not in given:
            example = "edf" if each.name == "inner" else "..."
            told = f"on a command line '{name}?{each.name}={example}'"
            raise ValueError(f"policy {name!r} needs its option {each.name}; {told}")


def _texts(factory: PolicyFactory, given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The options given as text where a number is expected, with a note on their default."""
    try:
        parameters = signature(factory).parameters.values()
    except (TypeError, ValueError):
        return []  # as in `_check_options`
    return [
        (each.name, "" if each.default is None else f", as {each.default}")
        for each in parameters
        if isinstance(given.get(each.name), str)
        and (isinstance(each.default, int | float) or "float" in str(each.annotation))
    ]


def named_policy(name: str) -> PolicyFactory:
    """The factory of a policy of the table.

    Raises:
        ValueError: There is none with that name.
    """
    factory = POLICIES.get(name)
    if factory is None:
        there = ", ".join(sorted(POLICIES))
        raise ValueError(f"policy {name!r} is not known{hint(name, POLICIES)}; there are {there}")
    return factory
