"""Only a policy that decides is watched: reading a trace takes what it takes."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from replay.headway import _reads


@pytest.mark.parametrize(
    ("module", "reads"),
    [
        ("replay.readers.azure_functions", True),
        ("replay.sources", True),
        ("replay.workloads.mix", False),
        ("policies.edf", False),
    ],
)
def test_who_reads_a_trace_is_not_deciding(module: str, reads: bool) -> None:
    made: dict[str, Any] = {"__name__": module}
    exec("def calls(look):\n    return look()", made)

    def looked() -> FrameType:
        return sys._getframe()

    assert _reads(made["calls"](looked)) is reads
