"""In which folder this package starts Python processes."""

from __future__ import annotations

import os
from pathlib import Path

_HOME = Path(__file__).parents[1]


def launch_folder() -> str:
    """The folder in which to start them, so that they import this package and no other.

    `python -m` imports from the folder in which it is started before all others, and so do Ray's
    workers from their driver's. A `scheduler.py` or `workers/` in somebody's project would be taken
    for ours. Only a checkout that is not installed is imported from there on purpose.
    """
    try:
        is_checkout = Path.cwd() == _HOME
    except FileNotFoundError:  # it was removed
        is_checkout = False
    return str(_HOME) if is_checkout else os.sep
