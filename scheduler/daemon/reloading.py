"""Reads the configuration file again; of its changes, only the policy is applied at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from pydantic import ValidationError

from scheduler.config.box import Config, load_config
from scheduler.config.policy import PolicyConfig
from scheduler.config.problems import ConfigError, Problem
from scheduler.core.policy import Policy
from scheduler.files import replace_file
from scheduler.policy_loading import check_policy, files_of
from workers.starting_again import is_brought_back

log = structlog.get_logger()

_EMPTY = (
    "it is empty, perhaps half-written, so the previous configuration stays; to select all "
    "defaults, put a comment in it"
)


class Reloaded(NamedTuple):
    """The result of reading a configuration file again.

    Attributes:
        config: The old configuration, with the changes that are applied.
        not_taken: Messages about changes that are not applied.
        policy: The configured policy, loaded; None without a file, or if the file has mistakes.
        files: The files that the policy was loaded from, with their content.
    """

    config: Config
    not_taken: list[str]
    policy: Policy | None
    files: dict[Path, bytes]


class LastPolicy:
    """The policy of the last file without mistakes, noted for the next scheduler of an agent's run.

    The agent gives every scheduler that Ray starts the configuration that it was itself started
    with; if the file has mistakes by then, that is not the last one in use.

    Args:
        path: The note's file, in the folder of this agent run.
    """

    def __init__(self, path: Path) -> None:
        """Reads and writes nothing yet."""
        self._path = path

    def note(self, policy: PolicyConfig) -> None:
        """Writes the note."""
        with contextlib.suppress(OSError):  # without it, the agent's own configuration counts
            replace_file(self._path, policy.model_dump_json(), mode=0o600)

    def within(self, config: Config) -> Config:
        """A configuration with the noted policy, or as it is where there is no note."""
        try:
            policy = PolicyConfig.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return config
        return config.model_copy(update={"policy": policy})


def reloaded(old: Config, config_file: Path | None, over: Mapping[str, Any]) -> Reloaded:
    """Combines the old configuration with the policy that the file names now.

    A file with mistakes, or one that has been emptied, is reported and changes nothing; changes
    that need a restart are reported.
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
        log.error("configuration not applied", file=str(config_file), error=str(error))
        return Reloaded(old, [str(error)], None, {})
    taken = old.model_copy(update={"policy": new.policy})
    waiting = [key for key in Config.model_fields if getattr(new, key) != getattr(taken, key)]
    if waiting:
        log.warning("changes wait for the next start", file=str(config_file), keys=waiting)
    told = f"{config_file}: changes to {', '.join(waiting)} wait for the next start"
    return Reloaded(taken, [told] if waiting else [], policy, files)


def _is_empty(file: Path) -> bool:
    try:
        return not file.read_bytes().strip()
    except OSError:  # just removed
        return True


def first_policy(
    begun: Reloaded, config_file: Path | None, hung: str | None
) -> tuple[Policy | None, str | None]:
    """The policy that a scheduler begins with, or the reason to begin without the configured one.

    Args:
        begun: The configuration, as read.
        config_file: Its file.
        hung: Why the policy must not be tried again; None if it may be.

    Raises:
        ConfigError: The policy can't be loaded. A scheduler that Ray restarted does not raise: its
            predecessor had loaded the policy, and the files have gone or broken since.
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
