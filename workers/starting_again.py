"""How an actor starts so that Ray never gives it up for good."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import ray

_PAUSE_S = 3.0


@contextmanager
def tried_again(who: str, *plain: type[Exception]) -> Iterator[None]:
    """Around the start of an actor: where Ray has brought it back, a start that fails is repeated.

    Ray brings an actor back whose process has ended, and gives one up for good whose constructor
    raises. At the first start somebody is there to read why. Later nobody is, and what is missing
    may come back: a folder that is being moved, a file that is being written. So that process
    ends after a pause, and Ray brings the next.

    Args:
        who: What the log calls the actor.
        plain: Errors that say all there is to say: who started the actor tells them in a line, and
            Ray's traceback is kept from the log.
    """
    try:
        yield
    except Exception as error:
        if not is_brought_back():
            if isinstance(error, plain) and ray.is_initialized():
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            raise
        told = f"{who} can't start again: {error}; it is tried once more in {_PAUSE_S:.0f} s"
        print(told, file=sys.stderr, flush=True)
        time.sleep(_PAUSE_S)
        os._exit(1)


def is_brought_back() -> bool:
    """Whether this process is an actor that Ray started because the one before it had ended."""
    if not ray.is_initialized():
        return False
    with warnings.catch_warnings():  # Ray uses what it warns of itself
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
