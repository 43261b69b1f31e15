"""Check before the start that everything a configuration names can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from edge_agent.errors import AgentError
from scheduler.config.box import Config
from scheduler.config.problems import ConfigError
from scheduler.device_specs import check_devices
from scheduler.ingress.secret_files import groups_of
from scheduler.policy_loading import check_policy


class Unusable(AgentError):
    """Something that a configuration names can't be used; the message has a line per problem."""

    code = "invalid_config"


class Mistaken(Unusable):
    """The configuration itself has a mistake, not only a file of tokens: no restart mends it."""

    exit_status = 2


def check_named(
    config: Config, file: Path | None, readable: Callable[[Path], bool] = lambda path: True
) -> None:
    """Check the policy, the devices' options, and the files of tokens and certificates.

    Args:
        config: The configuration.
        file: The file it was read from.
        readable: Returns whether a file is to be checked.

    Raises:
        Unusable: The message has every mistake and its place in its file; `Mistaken` if one is in
            the configuration.
    """
    mistakes = list(_settings(config, file))
    found = [str(error) for error in (*mistakes, *file_problems(config, readable))]
    if found:
        raise (Mistaken if mistakes else Unusable)("\n".join(found))


def _settings(config: Config, file: Path | None) -> Iterator[ConfigError]:
    for check in (partial(check_policy, config.policy), partial(check_devices, config)):
        try:
            check(file)
        except ConfigError as error:
            yield error


def file_problems(
    config: Config, readable: Callable[[Path], bool] = lambda path: True
) -> Iterator[ConfigError]:
    """Mistakes in the files of tokens and certificates, each once; see `check_named`."""
    told = set()
    for group in groups_of(config):
        for problem in group.problems(readable):
            if str(problem) not in told:  # the box's own token may be the one for other boxes too
                told.add(str(problem))
                yield problem
