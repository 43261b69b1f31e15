from __future__ import annotations

import pytest

from scheduler.core.figures import figure


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (9.876, "9.88"),
        (99.97, "100"),
        (123.4, "123"),
        (1234.5, "1,234"),
    ],
)
def test_a_figure_is_read_at_a_glance(value: float, told: str) -> None:
    assert figure(value) == told
