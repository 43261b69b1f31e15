"""The last usable content of the configuration file, for a life that begins while it has a mistake.

Only a life after another one uses it: at the first start somebody is there to read the mistake.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scheduler.config.box import Config, load_config
from scheduler.config.problems import ConfigError
from scheduler.files import replace_file

_COPY = "LAXITY_AGENT_LAST_CONFIG"


class LastConfig:
    """A copy of a configuration file, in a file that only this user can read.

    Args:
        file: The file.
        over: Settings that override it, as in `load_config`.
        state_dir: Where the copy is.
    """

    def __init__(self, file: Path, over: Mapping[str, Any], state_dir: Path) -> None:
        """Copies nothing yet."""
        self._file, self._over = file, over
        self._copy = state_dir / "last_config.yaml"

    def keep(self) -> None:
        """Copies the file, unless it has a mistake, and lets the next life know of the copy."""
        with suppress(OSError, ConfigError, UnicodeDecodeError):
            text = self._file.read_text(encoding="utf-8")
            load_config(self._file, self._over, text)
            if text.strip():  # otherwise perhaps half-written
                replace_file(self._copy, text, mode=0o600)
                os.environ[_COPY] = str(self._copy)

    def forget(self) -> None:
        """Removes the copy."""
        self._copy.unlink(missing_ok=True)


def load_again(
    file: Path | None, over: Mapping[str, Any] | None = None
) -> tuple[Config, ConfigError | None]:
    """Loads a configuration or, in a life after another one, the last one without a mistake.

    Returns:
        The configuration, and the mistake because of which it is the last one.

    Raises:
        ConfigError: As `load_config`, where there is no copy.
    """
    try:
        return load_config(file, over), None
    except ConfigError as error:
        mistake = error
    with suppress(OSError, KeyError, ConfigError):
        return load_config(file, over, Path(os.environ[_COPY]).read_text()), mistake
    raise mistake
