"""The default: its options, and what it has to bear."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies import make_policy
from policies.goodput import LEAST_SCALE
from tests.policies.playing import on_time, standard, written


@pytest.mark.parametrize("scale", [0, -1, LEAST_SCALE / 2, float("nan")])
def test_the_scale_has_a_least(scale: float) -> None:
    with pytest.raises(ValueError, match=r"scale must be at least 0\.01"):
        make_policy("goodput", scale=scale)


def test_with_the_least_scale_the_most_urgent_go_first() -> None:
    assert on_time(standard("load-0_8", requests=500), f"goodput?scale={LEAST_SCALE}") > 0.9


HICCUP = """
about: A device that is twelve times as slow for 0.15 s
fleet:
  models: [{name: m, base_ms: 2, per_item_ms: 0.3, jitter: 0.05, batches: [1, 2, 4, 8, 16, 32]}]
  boxes: [{devices: [{id: "npu:0"}]}]
  script: [{at_s: 3, target: "npu:0", event: slow, factor: 12, for_s: 0.15}]
workload:
  requests: 4000
  process: cameras
  cameras: 16
  fps: 50
  jitter: 0.1
  mix: [{model: m, share: 1, deadline_ms: 19.6}]
"""


@pytest.mark.no_cover
@pytest.mark.parametrize("policy", ["goodput", "edf", "fcfs"])
def test_a_short_hiccup_costs_little_more_than_it_takes(tmp_path: Path, policy: str) -> None:
    """It cost two seconds: too slow a prediction was believed that nothing could disprove."""
    assert on_time(written(tmp_path, HICCUP), policy) > 0.85
