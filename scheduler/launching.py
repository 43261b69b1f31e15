"""In which folder this package starts Python processes."""

from __future__ import annotations

import os
from pathlib import Path

_HOME = Path(__file__).parents[1]


def launch_folder() -> str:
    """The folder in which to start them, so that they import this package and no other.

    `python -m` imports from the folder in which it is started before all others, and so do Ray's
    workers from their driver's. A `scheduler.py` or `workers/` in somebody's project would be taken
    for ours. Only a checkout that is not installed is imported from there on purpose. So is what
    PYTHONPATH names, whose relative entries become absolute: there they would be other folders.
    """
    try:
        is_checkout = Path.cwd() == _HOME
    except FileNotFoundError:  # it was removed
        return os.sep
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(entry and not os.path.isabs(entry) for entry in entries):
        found = (os.path.abspath(entry) if entry else "" for entry in entries)
        os.environ["PYTHONPATH"] = os.pathsep.join(found)
    return str(_HOME) if is_checkout else os.sep
