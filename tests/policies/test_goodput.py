"""The default's options."""

from __future__ import annotations

import pytest

from policies import make_policy
from policies.goodput import LEAST_SCALE
from replay.experiment import PolicyChoice
from replay.scenarios import FOLDER, load_scenario


@pytest.mark.parametrize("scale", [0, -1, LEAST_SCALE / 2, float("nan")])
def test_the_scale_has_a_least(scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale must be at least 0\.01"):
        make_policy("goodput", scale=scale)


def test_with_the_least_scale_the_most_urgent_go_first() -> None:
    scenario = load_scenario(FOLDER / "load-0_8.yaml").experiment(requests=500)
    choice = PolicyChoice.parse(f"goodput?scale={LEAST_SCALE}")
    assert scenario.simulate(choice, 1).on_time_share() > 0.9
