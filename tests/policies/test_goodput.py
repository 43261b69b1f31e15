"""The default's options."""

from __future__ import annotations

import pytest

from policies import make_policy
from policies.goodput import LEAST_SCALE
from tests.policies.playing import on_time, standard


@pytest.mark.parametrize("scale", [0, -1, LEAST_SCALE / 2, float("nan")])
def test_the_scale_has_a_least(scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale must be at least 0\.01"):
        make_policy("goodput", scale=scale)


def test_with_the_least_scale_the_most_urgent_go_first() -> None:
    assert on_time(standard("load-0_8", requests=500), f"goodput?scale={LEAST_SCALE}") > 0.9
