"""Start an actor so that Ray never gives up on it."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import ray

_PAUSE_S = 3.0


@contextmanager
def tried_again(who: str, *plain: type[Exception]) -> Iterator[None]:
    """Wrap an actor's start; if Ray has restarted the actor, retry a start that fails.

    Ray restarts an actor whose process ended, but gives up on one whose constructor raises. At the
    first start somebody is there to read the error. At a restart nobody is, and what is missing may
    come back, such as a folder being moved or a file being written. So the process ends after a
    pause, and Ray starts the next one.

    Args:
        who: The actor's name in the log.
        plain: Errors whose message is enough: the process that started the actor reports it in a
            line, and Ray's traceback is kept out of the log.
    """
    try:
        yield
    except Exception as error:
        if not is_brought_back():
            if isinstance(error, plain) and ray.is_initialized():
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            raise
        told = f"{who} can't start again: {error}; trying once more in {_PAUSE_S:.0f} s"
        with suppress(OSError):  # the disk is full: that may pass too
            print(told, file=sys.stderr, flush=True)
        time.sleep(_PAUSE_S)
        os._exit(1)


def is_brought_back() -> bool:
    """Whether Ray started this actor because its previous process had ended."""
    if not ray.is_initialized():
        return False
    with warnings.catch_warnings():  # Ray itself uses what it warns about
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
