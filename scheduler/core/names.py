"""Natural sorting of names, and suggestions for misspelt ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches


def natural(name: str) -> list[tuple[int, str]]:
    """A sort key with which cpu:2 comes before cpu:10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def near(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most similar to a word, or else the only one that it begins, if any.

    A word begins a name as `rate` begins `rate_per_s`.

    Args:
        word: The word as written.
        known: The known names.
        cutoff: How similar they must be, from 0 to 1.
    """
    names = list(known)
    # get_close_matches would reject the others too, but only after comparing all of a 60 KB word.
    alike = [
        name for name in names if 2 * min(len(name), len(word)) >= cutoff * (len(name) + len(word))
    ]
    found = get_close_matches(word, alike, n=1, cutoff=cutoff) if alike else []
    found = found or [name for name in names if name.startswith(f"{word}_")]
    return found[0] if len(found) == 1 else None


def hint(word: str, known: Iterable[str]) -> str:
    """The name that was probably meant, in brackets, to append to the word; or nothing."""
    found = near(word, known)
    return f" (did you mean {found!r}?)" if found is not None else ""


def or_which(word: str, known: Iterable[str]) -> str:
    """The name that was probably meant, or all there are, in brackets, to append to the word."""
    names = sorted(known)
    return f" ({did_you_mean(word, names, 'there are: ' + ', '.join(names))})" if names else ""


def did_you_mean(
    word: str, known: Iterable[str], otherwise: str | None = None, cutoff: float = 0.6
) -> str:
    """A "did you mean" question with the known name that was probably meant.

    Args:
        word: The word as written.
        known: The known names.
        otherwise: The text if none is similar; if not given, a list of the known names.
        cutoff: How similar they must be, from 0 to 1.
    """
    names = list(known)
    found = near(word, names, cutoff)
    if found is not None:
        return f"did you mean {found!r}?"
    return f"there are {', '.join(names) or 'none'}" if otherwise is None else otherwise
