"""A policy that came to no end, remembered from one life of the scheduler to the next."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from scheduler.config.box import PolicyConfig
from scheduler.files import replace_file


class HungPolicy:
    """A note that one scheduler leaves for the next.

    Args:
        path: Where; in the folder of this run of the agent, so that its next run tries anew.
    """

    def __init__(self, path: Path) -> None:
        """Reads and writes nothing yet."""
        self._path = path

    def note(self, policy: PolicyConfig, files: Mapping[Path, bytes], why: str) -> None:
        """Leaves it.

        Args:
            policy: The one that hung.
            files: What it was read from, with what they held.
            why: What to say of it.
        """
        with contextlib.suppress(OSError):  # without it the policy is only tried again
            replace_file(self._path, json.dumps({"policy": _identity(policy, files), "why": why}))

    def why(self, policy: PolicyConfig, files: Mapping[Path, bytes]) -> str | None:
        """What was noted of just that policy; None where it is another one by now."""
        try:
            noted = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        return str(noted["why"]) if noted["policy"] == _identity(policy, files) else None

    def forget(self) -> None:
        """It is to be tried again."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def _identity(policy: PolicyConfig, files: Mapping[Path, bytes]) -> str:
    read = {str(path): hashlib.sha256(text).hexdigest() for path, text in files.items()}
    return repr((policy.name, sorted(policy.options.items()), sorted(read.items())))
