"""Every input that fuzzing kept, for every parser: what was found once stays mended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_parser_survives_the_corpus_of_all(name: str) -> None:
    inputs = sorted(path for path in CORPUS.rglob("*") if path.is_file())
    assert any(path.parent.name == name for path in inputs)
    for path in inputs:
        try:
            TARGETS[name](path.read_bytes())
        except BaseException as error:
            raise AssertionError(f"{name} broke at {path}") from error
