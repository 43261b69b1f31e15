"""Check before the start that everything a configuration names can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from edge_agent.errors import AgentError
from edge_agent.worker_arguments import device_spec
from scheduler.config.box import Config
from scheduler.config.problems import ConfigError, problem_at
from scheduler.ingress.certificates import server_context
from scheduler.policy_loading import check_policy
from scheduler.tenants import load_access, read_token
from workers.runtimes.base import DeviceError
from workers.usable_runtimes import check_settings


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
    source = file or "defaults"
    try:
        check_policy(config.policy, file)
    except ConfigError as error:
        yield error
    for index, device in enumerate(config.listed_devices):
        try:
            check_settings(device_spec(device))
        except DeviceError as error:
            yield ConfigError(str(source), [problem_at(file, ["devices", index], str(error))])


def file_problems(
    config: Config, readable: Callable[[Path], bool] = lambda path: True
) -> Iterator[ConfigError]:
    """Mistakes in the files of tokens and certificates; arguments as in `check_named`."""

    def known(path: Path | None) -> Path | None:
        return path if path is not None and readable(path) else None

    tls, neighbours = config.tls, config.neighbours
    checks: list[Callable[[], object]] = [
        lambda: load_access(known(config.token_file), None),
        lambda: load_access(None, known(config.tenants_file)),
    ]
    if tls is not None and all(readable(p) for p in (tls.cert, tls.key, tls.client_ca) if p):
        checks.append(lambda: server_context(tls))
    if neighbours is not None:
        shown = known(neighbours.token_file or config.token_file)
        checks.append(lambda: shown and read_token(shown))
    for cloud in config.cloud:
        token, keys = cloud.token_file, (cloud.tls.ca, cloud.tls.cert, cloud.tls.key)
        from scheduler.daemon.cloud.dialing import ssl_context, token_to_show  # most have no cloud

        if token is not None and readable(token):
            checks.append(partial(token_to_show, token))
        if cloud.is_secure and all(readable(path) for path in keys if path is not None):
            checks.append(partial(ssl_context, cloud))
    for check in checks:
        try:
            check()
        except ConfigError as error:
            yield error
