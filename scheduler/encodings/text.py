"""An encoding as text, as messages carry it."""

from __future__ import annotations

from scheduler.errors import InvalidInput
from workers.model import LAYOUTS, Encoding

FLOAT16, JPEG = "float16", "jpeg"
ENCODING_EXTENSION = "laxity_encoding_"
"""Before an encoding's name: the extension of the Open Inference Protocol by which a server says
that it undoes that one."""

_LONGEST = 512
_LEAST, _MOST = 1e-30, 1e30
"""Of a scale, and of an offset: with a pixel's 255 steps they are numbers of 32 bits."""


def text_of(encoding: Encoding) -> str:
    """What the receiver has to know to undo it."""
    if encoding.name != JPEG:
        return encoding.name
    scale, offset = (",".join(map(repr, each)) for each in (encoding.scale, encoding.offset))
    return f"{JPEG};layout={encoding.layout};scale={scale};offset={offset}"


def encoding_from(text: object) -> Encoding:
    """The encoding that a text names.

    Raises:
        InvalidInput: It names none that there is, or not all that belongs to it.
    """
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise InvalidInput(f"an encoding is a text of at most {_LONGEST} characters")
    name, *fields = text.split(";")
    if name == FLOAT16 and not fields:
        return Encoding(FLOAT16)
    said = dict(field.partition("=")[::2] for field in fields)
    if name != JPEG or said.keys() != {"layout", "scale", "offset"}:
        raise InvalidInput(
            f"encoding {text!r:.80} is not known; there are {FLOAT16} and "
            f"{JPEG};layout=NCHW;scale=...;offset=..."
        )
    if said["layout"] not in LAYOUTS:
        raise InvalidInput(f"layout of {text!r:.80} should be {' or '.join(LAYOUTS)}")
    scale, offset = _numbers(text, said["scale"]), _numbers(text, said["offset"])
    if min(map(abs, scale)) < _LEAST:
        raise InvalidInput(f"scale of {text!r:.80} should not be 0")
    return Encoding(JPEG, layout=said["layout"], scale=scale, offset=offset)


def _numbers(text: str, listed: str) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, listed.split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 3) or not all(abs(number) <= _MOST for number in numbers):
        raise InvalidInput(
            f"scale and offset of {text!r:.80} should be 1 or 3 numbers each, up to {_MOST:g}"
        )
    return numbers
