"""The kernel's small files. Which of them exist differs from box to box."""

from __future__ import annotations

from pathlib import Path


def text_of(path: Path) -> str | None:
    """A small file's text without its end of line, or None where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip("\0 \n")
    except OSError:
        return None


def number_of(path: Path) -> int | None:
    """The whole number in a file, or None."""
    text = text_of(path)
    try:
        return int(text) if text else None
    except ValueError:
        return None
