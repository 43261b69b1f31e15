"""The last usable content of the configuration file, for a life that begins while it has a mistake.

Only a life after another one uses it: at the first start somebody is there to read the mistake. A
box that was ended in the middle of its life goes on with it too, if the mistake is the one that it
had already refused; whoever has changed the file since is there as well.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scheduler.config.box import Config, default_state_dir, load_config
from scheduler.config.problems import ConfigError, Problem
from scheduler.files import read_regular, replace_file

EMPTY = (
    "it is empty, perhaps half-written, so the previous configuration stays; to select all "
    "defaults, put a comment in it"
)

_PLACE = "LAXITY_AGENT_LAST_CONFIG"
_STATE_DIR = re.compile(rb"^state_dir:[ \t]*[\"']?([^\"'#\r\n]+)", re.MULTILINE)


class LastConfig:
    """A copy of a configuration file, in a file that only this user can read.

    The scheduler makes it; an agent that stops in an orderly way removes it.

    Args:
        file: The file.
        over: Settings that override it, as in `load_config`.
        state_dir: Where the copy is.
    """

    def __init__(self, file: Path, over: Mapping[str, Any], state_dir: Path) -> None:
        """Copies nothing yet."""
        self._file, self._over = file, over
        self._copy, self._refused = _places(state_dir)

    def begin(self) -> None:
        """Removes what an earlier life has left, unless this one is its next, and may go by it."""
        if _PLACE not in os.environ:
            self.forget()
            os.environ[_PLACE] = str(self._copy.parent)

    def keep(self) -> None:
        """Copies the file, unless it has a mistake.

        Where the copy can't be written, as on a full disk, there is none afterwards: an old one is
        not what was last in use.
        """
        try:
            text = read_regular(self._file).decode()
            load_config(self._file, self._over, text)
        except (OSError, ConfigError, UnicodeDecodeError):
            return
        if not text.strip():  # perhaps half-written
            return
        try:
            if self._kept() != text:
                replace_file(self._copy, text, durable=True, mode=0o600)
            self._refused.unlink(missing_ok=True)
        except OSError:
            self.forget()

    def _kept(self) -> str | None:
        try:
            return self._copy.read_bytes().decode()
        except (OSError, UnicodeDecodeError):
            return None

    def refuse(self) -> None:
        """Notes that what is in the file now is known to have a mistake."""
        with suppress(OSError):
            replace_file(self._refused, _digest(self._file), durable=True, mode=0o600)

    def forget(self) -> None:
        """Removes the copy."""
        with suppress(OSError):
            for path in (self._copy, self._refused):
                path.unlink(missing_ok=True)


def load_again(
    file: Path | None,
    over: Mapping[str, Any] | None = None,
    check: Callable[[Config], object] = lambda config: None,
) -> tuple[Config, ConfigError | None]:
    """Loads a configuration or, in a life after another one, the last one without a mistake.

    Args:
        file: The file.
        over: Settings that override it, as in `load_config`.
        check: Raises `ConfigError` for a configuration that can't be used although it is valid; a
            first life has yet to find that out by itself.

    Returns:
        The configuration, and the mistake because of which it is the last one.

    Raises:
        ConfigError: As `load_config`, where there is no copy.
    """
    copy = _copy_for(file) if file is not None else None
    try:
        config = load_config(file, over)
        if copy is not None:
            check(config)
            _check_content(file)
        return config, None
    except ConfigError as error:
        mistake = error
    with suppress(OSError, ConfigError, UnicodeDecodeError):
        if copy is not None:
            _check_content(copy)  # after a power failure it may be empty
            config = load_config(file, over, copy.read_bytes().decode())
            os.environ[_PLACE] = str(copy.parent)
            return config, mistake
    raise mistake


def _check_content(file: Path | None) -> None:
    if file is not None and not read_regular(file).strip():
        raise ConfigError(str(file), [Problem("", EMPTY)])


def _copy_for(file: Path) -> Path | None:
    """The copy that counts if the file has a mistake; None if there is none."""
    if _PLACE in os.environ:
        folders = [Path(os.environ[_PLACE])]
    else:
        folders = [each for each in _state_dirs(file) if _has_refused(each, file)]
    return next((copy for copy, _ in map(_places, folders) if os.path.exists(copy)), None)


def _has_refused(state_dir: Path, file: Path) -> bool:
    """Whether a box that did not end in an orderly way knew of the mistake in the file."""
    _, refused = _places(state_dir)
    with suppress(OSError):
        return refused.read_text() == _digest(file)
    return False


def _state_dirs(file: Path) -> Iterator[Path]:
    """Where the state folder may be that the file names, as far as it can still be read."""
    with suppress(OSError, RuntimeError):
        for named in _STATE_DIR.findall(read_regular(file)):
            path = Path(os.fsdecode(named.strip()))
            yield Path(os.path.normpath(file.absolute().parent / path.expanduser()))
    yield default_state_dir()


def _places(state_dir: Path) -> tuple[Path, Path]:
    """The copy in a state folder, and the note on the content of the file that was refused."""
    return state_dir / "last_config.yaml", state_dir / "last_config.refused"


def _digest(file: Path) -> str:
    """A mark of the file and of what is in it now."""
    mark = hashlib.blake2b(os.fsencode(file.absolute()), digest_size=16)
    with suppress(OSError):  # there is none
        mark.update(b"\n" + read_regular(file))
    return mark.hexdigest()
