"""Loads policies from the table, other distributions, a module or a file.

`policies` is a pure room, so the imports and file access that third-party policies need are here.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

from policies import DEFAULT, POLICIES, PolicyFactory, build_policy, wrapped
from scheduler.config.policy import PolicyConfig, policy_place
from scheduler.config.problems import ConfigError, problem_at
from scheduler.core.errors import INTERRUPTIONS, words_of
from scheduler.core.names import hint
from scheduler.core.policy import Policy
from scheduler.files import hint_beside

GROUP = "laxity.policies"
"""The entry points under which other distributions offer policies."""


class NamedPolicy(NamedTuple):
    """A policy by its name and options, which `load_policy` takes.

    Attributes:
        name: As in the configuration.
        options: The policy's options.
    """

    name: str
    options: dict[str, Any]


FALLBACK = NamedPolicy(DEFAULT, {})
"""What stands in for a policy that fails."""


def load_policy(name: str, /, **options: Any) -> Policy:
    """Makes a policy by name.

    Args:
        name: A key of `policies.POLICIES`, an entry point of the group `laxity.policies`,
            `module:Class`, or `path/to/file.py:Class`, where the class may be left out if the file
            has only one policy. A file is read again each time.
        options: The policy's options. A mapping with a `name` among them is itself a policy, which
            the new one wraps.

    Raises:
        ValueError: There is no such policy, it can't be loaded, or it has no such option.
    """
    return build_policy(name, options, find_policy)


def check_policy(policy: PolicyConfig, file: Path | None) -> Policy:
    """Makes the policy of a configuration.

    Args:
        policy: Its name and options.
        file: The file they were read from; None for defaults.

    Raises:
        ConfigError: There is no such policy, or it does not take the options.
    """
    try:
        with redirect_stdout(sys.stderr):  # a policy may print while being made
            return load_policy(policy.name, **policy.options)
    except ValueError as error:
        source = str(file or "defaults")
        raise ConfigError(source, [problem_at(file, ["policy"], str(error))]) from None


def load_offered(name: str, /, **options: Any) -> Policy:
    """Like `load_policy`, for names from remote callers: loads no file and no module by name.

    The same holds for wrapped policies at any depth.

    Raises:
        ValueError: As in `load_policy`.
    """
    return build_policy(name, options, find_offered)


def find_policy(name: str) -> PolicyFactory:
    """The factory of the policy with a name, as in `load_policy`.

    Raises:
        ValueError: There is none, or it can't be loaded.
    """
    where, _, class_name = policy_place(name)
    if name not in POLICIES and where.endswith(".py"):
        return _class_of(name, _file(name, _path(where)), class_name)
    if (found := _known(name)) is not None:
        return found
    if where and class_name:
        return _class_of(name, _module(name, where, class_name), class_name)
    told = "or name one as 'module:Class' or 'path/to/file.py:Class'"
    raise _unknown(name, told, _file_meant(name))


def find_offered(name: str) -> PolicyFactory:
    """The factory of the policy with a name, as in `load_offered`.

    Raises:
        ValueError: There is none, or it can't be loaded.
    """
    if (found := _known(name)) is not None:
        return found
    raise _unknown(name, "one from a file or module can be named in the configuration only")


def _known(name: str) -> PolicyFactory | None:
    """The factory of a policy in the table or of an entry point; None if there is none."""
    if name in POLICIES:
        return POLICIES[name]
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    return _offered(name, points) if points else None


def _unknown(name: str, otherwise: str, meant: str = "") -> ValueError:
    before, mark, _ = name.partition("?")
    if mark:
        told = f"give a wrapped policy's options in braces, as {{name: {before}, quantile: 0.9}}"
        return ValueError(f"policy {name!r} is not known; {told}")
    known = sorted({*POLICIES, *(point.name for point in entry_points(group=GROUP))})
    told = f"there are {', '.join(known)}; {otherwise}"
    return ValueError(f"policy {name!r} is not known{meant or hint(name, known)}; {told}")


def _file_meant(where: str, class_name: str = "") -> str:
    """The file in the current folder that was probably meant, in brackets; or nothing."""
    with suppress(OSError, ValueError):
        if Path(f"{where}.py").is_file():
            return f" (did you mean {':'.join(filter(None, (f'{where}.py', class_name)))!r}?)"
    return ""


def files_of(name: str, options: Mapping[str, Any]) -> dict[Path, bytes]:
    """The files that a policy and those it wraps are read from, with their current content.

    A file that can't be read is left out; loading it reports why.

    Args:
        name: As in `load_policy`.
        options: As in `load_policy`.
    """
    where, _, _ = policy_place(name)
    found: dict[Path, bytes] = {}
    if where.endswith(".py"):
        with suppress(OSError, ValueError):
            path = _path(where)
            found[path] = path.read_bytes()
    for inner_name, inner_options in wrapped(options).values():
        found |= files_of(inner_name, inner_options)
    return found


def _path(where: str) -> Path:
    return Path(os.path.expanduser(where))


def _file(name: str, path: Path) -> ModuleType:
    try:
        is_there = path.is_file()
    except OSError as error:
        raise ValueError(f"policy {name!r}: {path} can't be read ({error.strerror})") from None
    if not is_there:
        told = f"there is no file {path.absolute()}{hint_beside(path, '*.py')}"
        raise ValueError(f"policy {name!r}: {told}")
    module_name = f"laxity_policy_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"policy {name!r}: {path} can't be imported")
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(module_name)
    sys.modules[module_name] = module  # dataclasses look their own module up
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        if before is None:
            del sys.modules[module_name]
        else:
            sys.modules[module_name] = before
        told = f"policy {name!r}: {path} raised {words_of(error)}{_about_import(error, path)}"
        raise ValueError(told) from error
    return module


def _about_import(error: BaseException, path: Path) -> str:
    """What to do if a policy's file imports another one beside it; else nothing."""
    with suppress(OSError, ValueError):
        if isinstance(error, ModuleNotFoundError) and path.with_name(f"{error.name}.py").is_file():
            return "; files beside it can't be imported: install both, and name it as module:Class"
    return ""


def _offered(name: str, points: list[EntryPoint]) -> PolicyFactory:
    values = sorted({point.value for point in points})
    if len(values) > 1:  # their order depends on the file system
        who = " and ".join(sorted(f"{_giver(point)} ({point.value})" for point in points))
        raise ValueError(
            f"policy {name!r} is offered by {who}: uninstall all but one, or name it as "
            f"{values[0]!r}"
        )
    try:
        found = points[0].load()
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        told = f"entry point {values[0]!r} of {_giver(points[0])}: {words_of(error)}"
        raise ValueError(f"policy {name!r}: {told}") from error
    return _checked(name, found)


def _giver(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown distribution"


def _module(name: str, where: str, class_name: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except INTERRUPTIONS:
        raise
    except BaseException as error:
        told = f"module {where!r}: {words_of(error)}"
        if isinstance(error, ModuleNotFoundError) and error.name == where:
            told += _file_meant(where, class_name)
        raise ValueError(f"policy {name!r}: {told}") from error


def _class_of(name: str, module: ModuleType, class_name: str) -> PolicyFactory:
    if class_name:
        try:
            found = attrgetter(class_name)(module)  # an entry point may name a nested class
        except AttributeError:
            there = [n for n, made in vars(module).items() if inspect.isclass(made)]
            raise ValueError(
                f"policy {name!r}: {_where(module)} has no {class_name!r}{hint(class_name, there)}"
            ) from None
        return _checked(name, found)
    own = [
        found
        for found in dict.fromkeys(filter(inspect.isclass, vars(module).values()))
        if found.__module__ == module.__name__ and _decides(found)
    ]
    if len(own) != 1:
        names = ", ".join(found.__name__ for found in own) or "none"
        raise ValueError(
            f"policy {name!r}: {_where(module)} should have one class with a method 'decide', or "
            f"name it as 'file.py:Class'; there: {names}"
        )
    return cast(PolicyFactory, own[0])


def _checked(name: str, found: Any) -> PolicyFactory:
    if not callable(found):
        told = f"is {found!r:.60}, which makes no policy"
        if hasattr(found, "decide"):  # an instance shared by all schedulers could not start fresh
            told = f"is one {type(found).__name__} for all schedulers; name its class"
        elif isinstance(found, ModuleType):
            told = f"is the module {found.__name__}; name a class in it, as {found.__name__}:Class"
        raise ValueError(f"policy {name!r} {told}")
    if inspect.isclass(found) and not _decides(found):
        raise ValueError(f"policy {name!r}: class {found.__name__!r} has no method 'decide'")
    return cast(PolicyFactory, found)


def _decides(made: type) -> bool:
    """Whether a class has a method `decide`; that of the protocol, if inherited, does nothing."""
    decide = getattr(made, "decide", None)
    return callable(decide) and decide is not Policy.decide


def _where(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or module.__name__
