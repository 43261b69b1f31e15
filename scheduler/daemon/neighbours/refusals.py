"""Why another box was not reached, and whether that passes by itself."""

from __future__ import annotations

from scheduler.address import plainly
from scheduler.client.tls import TlsFailure
from scheduler.errors import LaxityError, Unauthorized


def is_refusal(error: Exception) -> bool:
    """Whether the box at the other end said no, which passes only when somebody changes something.

    The same goes for its certificate. Otherwise nothing answers there at the moment.
    """
    if isinstance(error, TlsFailure):  # a box that ends hangs up in the middle of a handshake
        return not isinstance(error.__cause__, ConnectionError)
    return isinstance(error, LaxityError | ValueError)


def said(error: Exception) -> str:
    """Why a box was not reached, for people."""
    if isinstance(error, Unauthorized):  # its own words are for callers
        return "it refuses this box's token (neighbours.token_file, else token_file)"
    return plainly(error) or "it does not answer"
