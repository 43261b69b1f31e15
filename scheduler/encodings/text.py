"""An encoding as text, as messages carry it."""

from __future__ import annotations

from scheduler.errors import InvalidInput
from workers.model import LAYOUTS, Encoding

FLOAT16, JPEG = "float16", "jpeg"
ENCODING_EXTENSION = "laxity_encoding_"
"""The prefix of an encoding's name in the Open Inference Protocol extension by which a server says
that it can decode it."""

_LONGEST = 512
_LEAST, _MOST = 1e-30, 1e30
"""The bounds of scales and offsets: times a pixel's 255 steps they still fit 32-bit floats."""


def text_of(encoding: Encoding) -> str:
    """What the receiver needs to know to decode it."""
    if encoding.name != JPEG:
        return encoding.name
    scale, offset = (",".join(map(repr, each)) for each in (encoding.scale, encoding.offset))
    return f"{JPEG};layout={encoding.layout};scale={scale};offset={offset}"


def encoding_from(text: object) -> Encoding:
    """Parses an encoding from its text.

    Raises:
        InvalidInput: The encoding is unknown, or a field is missing or wrong.
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
