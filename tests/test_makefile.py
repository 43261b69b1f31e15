"""The Makefile's own lists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_what_is_compiled_is_there():
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (listed,) = re.findall(r"^HOT := (.*)$", text, re.MULTILINE)
    files = re.findall(r"\S+/\S+\.py(?=\s|$)", listed)
    for pattern, names in re.findall(r"\$\(patsubst %,(\S+?),([^)]*)\)", listed):
        files += [pattern.replace("%", name) for name in names.split()]
    assert len(files) > 15
    assert [name for name in files if not (ROOT / name).is_file()] == []
