"""Remembers a policy that hung from one run of the scheduler to the next."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from scheduler.config.policy import PolicyConfig
from scheduler.files import replace_file


class HungPolicy:
    """A note that one scheduler leaves for the next.

    Args:
        path: The note's file, in the folder of this agent run, so that the next agent run tries
            the policy again.
    """

    def __init__(self, path: Path) -> None:
        """Reads and writes nothing yet."""
        self._path = path

    def note(self, policy: PolicyConfig, files: Mapping[Path, bytes], why: str) -> None:
        """Writes the note.

        Args:
            policy: The policy that hung.
            files: The files it was loaded from, with their content.
            why: The explanation to show.
        """
        with contextlib.suppress(OSError):  # without the note the policy is merely tried again
            replace_file(self._path, json.dumps({"policy": _identity(policy, files), "why": why}))

    def why(self, policy: PolicyConfig, files: Mapping[Path, bytes]) -> str | None:
        """The noted explanation for exactly this policy; None if it is another one by now."""
        try:
            noted = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return None
        return str(noted["why"]) if noted["policy"] == _identity(policy, files) else None

    def forget(self) -> None:
        """Deletes the note, so that the policy is tried again."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def _identity(policy: PolicyConfig, files: Mapping[Path, bytes]) -> str:
    read = {str(path): hashlib.sha256(text).hexdigest() for path, text in files.items()}
    return repr((policy.name, sorted(policy.options.items()), sorted(read.items())))
