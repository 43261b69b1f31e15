"""What a configuration file says by now, of which the policy alone is taken over at once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from scheduler.config.box import Config, ConfigError, Problem, load_config
from scheduler.core.policy import Policy
from scheduler.policy_loading import check_policy, files_of
from workers.starting_again import is_brought_back

log = structlog.get_logger()

_EMPTY = (
    "it is empty, perhaps half-written, so what it said before stays; a comment in it would mean "
    "every default"
)


class Reloaded(NamedTuple):
    """What a configuration file says by now.

    Attributes:
        config: The one there was, with what was taken over.
        not_taken: What was not, and why.
        policy: The one that it names, made; None where the file has mistakes and changes nothing.
        files: What that was read from.
    """

    config: Config
    not_taken: list[str]
    policy: Policy | None
    files: dict[Path, bytes]


def reloaded(old: Config, config_file: Path | None, over: Mapping[str, Any]) -> Reloaded:
    """The old configuration with the policy that the file names now, and what is not taken over.

    A file with mistakes, or with nothing in it any more, is reported and changes nothing; so are
    changes that need a restart.
    """
    if config_file is None:
        return Reloaded(old, [], None, {})
    try:
        new = load_config(config_file, over)
        if new != old and _is_empty(config_file):
            raise ConfigError(str(config_file), [Problem("", _EMPTY)])
        files = files_of(new.policy.name, new.policy.options)
        policy = check_policy(new.policy, config_file)
    except ConfigError as error:
        log.error("configuration not taken over", file=str(config_file), error=str(error))
        return Reloaded(old, [str(error)], None, {})
    taken = old.model_copy(update={"policy": new.policy})
    waiting = [key for key in Config.model_fields if getattr(new, key) != getattr(taken, key)]
    if waiting:
        log.warning("changes wait for the next start", file=str(config_file), keys=waiting)
    told = f"{config_file}: {', '.join(waiting)} wait for the next start"
    return Reloaded(taken, [told] if waiting else [], policy, files)


def _is_empty(file: Path) -> bool:
    try:
        return not file.read_bytes().strip()
    except OSError:  # it has just gone
        return True


def first_policy(
    begun: Reloaded, config_file: Path | None, hung: str | None
) -> tuple[Policy | None, str | None]:
    """The policy that a scheduler begins with, or why without the configured one.

    Args:
        begun: What the configuration file says.
        config_file: Which that is.
        hung: Why its policy is not to be tried again.

    Raises:
        ConfigError: It can't be made. Where Ray brought the scheduler back that is no error: what
            it is loaded from is gone or broken by now, which the one before did not need any more.
    """
    if hung is not None:
        return None, hung
    if begun.policy is not None:
        return begun.policy, None
    try:
        return check_policy(begun.config.policy, config_file), None
    except ConfigError as error:
        if not is_brought_back():
            raise
        log.error("the policy can't be loaded any more", error=str(error))
        return None, str(error)
