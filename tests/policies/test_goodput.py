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


FAST_AND_SLOW = """
about: Quick requests beside slow ones, which the cloud does sooner
fleet:
  models:
    - {name: fast, base_ms: 1, per_item_ms: 1, jitter: 0.02, batches: [1, 2, 4]}
    - {name: slow, base_ms: 6000, per_item_ms: 0, jitter: 0.02, batches: [1]}
  boxes:
    - {devices: [{id: "gpu:0"}]}
    - name: cloud
      link: {rtt_ms: 20, mbps: 100}
      devices: [{id: pool, time_scale: 0.5, width: 1, cost_per_request: 0.001}]
workload:
  requests: 600
  process: poisson
  rate_per_s: 5.6
  mix:
    - {model: fast, share: 5, deadline_ms: 200}
    - {model: slow, share: 0.6, deadline_ms: 10000}
"""

ONLY_HERE = """
about: A far device takes a tenth of the time of the own one, but is too far for most requests
fleet:
  models:
    - {name: fast, base_ms: 4.5, per_item_ms: 0.9, jitter: 0.02, batches: [1, 2, 4, 8]}
    - {name: slow, base_ms: 175, per_item_ms: 15, jitter: 0.02, batches: [1, 2, 4, 8]}
  boxes:
    - {devices: [{id: "gpu:0"}]}
    - name: cloud
      link: {rtt_ms: 60, mbps: 100}
      devices: [{id: pool, time_scale: 0.1, width: 2}]
workload:
  requests: 1500
  process: poisson
  load: 0.8
  mix:
    - {model: fast, share: 5, deadline_ms: 36, size_bytes: 100000}
    - {model: slow, share: 1, deadline_ms: 667}
"""

TOO_FAR = """
about: A cloud could do everything, but is too far for quick requests
fleet:
  models:
    - {name: fast, base_ms: 2, per_item_ms: 1.5, jitter: 0.02, batches: [1, 2, 4, 8]}
    - {name: slow, base_ms: 85, per_item_ms: 32, jitter: 0.1, batches: [1, 2, 4, 8]}
  boxes:
    - {devices: [{id: "gpu:0", time_scale: 0.5}]}
    - name: cloud
      link: {rtt_ms: 20, mbps: 100}
      devices: [{id: pool, time_scale: 0.1, width: 8, slots: 8}]
workload:
  requests: 1500
  process: poisson
  load: 0.6
  mix:
    - {model: slow, share: 5, deadline_ms: 600}
    - {model: fast, share: 3, deadline_ms: 18, size_bytes: 100000}
"""


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("scenario", "least"),
    [(FAST_AND_SLOW, 0.85), (ONLY_HERE, 0.95), (TOO_FAR, 0.95)],
    ids=["paid", "free", "far"],
)
def test_the_own_device_is_left_to_those_that_have_no_other(
    tmp_path: Path, scenario: str, least: float
) -> None:
    """Slow requests took it, and 20 to 60 % were in time."""
    assert on_time(written(tmp_path, scenario)) > least


SLOTS_TAKEN = """
about: A cloud whose slots are taken on the way, and one that is too far
fleet:
  models:
    - {name: quick, base_ms: 0.1, per_item_ms: 0.9, batches: [1]}
    - {name: long, base_ms: 0.3, per_item_ms: 5.9, batches: [1, 2, 4, 8, 16]}
  boxes:
    - {devices: [{id: "cpu:0"}]}
    - {name: near, link: {rtt_ms: 5}, devices: [{id: pool, time_scale: 0.1, slots: 2}]}
    - {name: far, link: {rtt_ms: 60}, devices: [{id: pool, time_scale: 0.1, width: 2, slots: 2}]}
workload:
  requests: 1500
  process: gamma
  cv: 2
  rate_per_s: 1200
  mix:
    - {model: quick, share: 1, deadline_ms: 10}
    - {model: long, share: 5, deadline_ms: 36}
"""

LINK_TAKEN = """
about: A cloud whose link takes large inputs as long as urgent requests can wait
fleet:
  models:
    - {name: large, base_ms: 13, per_item_ms: 3.6, batches: [1, 2, 4, 8, 16]}
    - {name: urgent, base_ms: 16, per_item_ms: 15, batches: [1, 2, 4, 8, 16]}
  boxes:
    - {devices: [{id: "gpu:0"}]}
    - name: cloud
      link: {rtt_ms: 20, mbps: 100}
      devices: [{id: pool, time_scale: 0.1, width: 8, slots: 8}]
workload:
  requests: 1500
  process: poisson
  rate_per_s: 600
  mix:
    - {model: large, share: 1, deadline_ms: 120, size_bytes: 100000}
    - {model: urgent, share: 4, deadline_ms: 52, size_bytes: 1000}
"""

NEITHER_NEAR_NOR_WIDE = """
about: A device beside a faster one that is too far for most, and takes two batches
fleet:
  models:
    - {name: quick, base_ms: 1.2, per_item_ms: 0.6, batches: [1, 2, 4, 8, 16]}
    - {name: long, base_ms: 10, per_item_ms: 7, batches: [1, 2, 4, 8, 16]}
  boxes:
    - {devices: [{id: "gpu:0"}]}
    - {name: cloud, link: {rtt_ms: 60}, devices: [{id: pool, time_scale: 0.3, width: 2, slots: 2}]}
workload:
  requests: 1500
  process: gamma
  cv: 4
  rate_per_s: 300
  mix:
    - {model: quick, share: 3, deadline_ms: 9}
    - {model: long, share: 1, deadline_ms: 140}
"""


@pytest.mark.no_cover
@pytest.mark.parametrize(
    ("scenario", "least"),
    [(SLOTS_TAKEN, 0.93), (LINK_TAKEN, 0.88), (NEITHER_NEAR_NOR_WIDE, 0.77)],
    ids=["slots", "link", "way"],
)
def test_what_is_sent_far_takes_up_the_way_there_as_well(
    tmp_path: Path, scenario: str, least: float
) -> None:
    """Counted by their execution alone, these had 86, 83 and 66 % in time."""
    assert on_time(written(tmp_path, scenario), seeds=(1, 2, 3)) > least


ONE_MODEL = """
about: One model on a GPU that lives on batches, with little time for each request
fleet:
  models: [{name: detect, base_ms: 9.5, per_item_ms: 0.5, jitter: 0.08, batches: [1, 2, 4, 8, 16]}]
  boxes: [{devices: [{id: "gpu:0"}]}]
workload:
  requests: 2500
  process: poisson
  load: 0.7
  mix: [{model: detect, deadline_scale: 3}]
"""


@pytest.mark.no_cover
def test_a_batch_is_not_made_smaller_because_nobody_fills_it(tmp_path: Path) -> None:
    """In batches of the measured sizes alone, 91 % were in time."""
    assert on_time(written(tmp_path, ONE_MODEL), seeds=(1, 2, 3)) > 0.97


CHANGING_LINK = """
about: A CPU, and a cloud behind a link that is eight times as fast at some times as at others.
fleet:
  models:
    - {name: detect, base_ms: 1, per_item_ms: 24, jitter: 0.08, batches: [1, 2]}
    - {name: describe, base_ms: 20, per_item_ms: 100, jitter: 0.08, batches: [1, 2]}
  boxes:
    - {devices: [{id: "cpu:0"}]}
    - name: cloud
      link: {rtt_ms: 40, capacity: FOLDER/link.txt, format: mbps, interval_s: 3}
      devices: [{id: pool, time_scale: 0.2, width: 4, slots: 8}]
workload:
  process: poisson
  rate_per_s: 60
  requests: 3000
  mix:
    - {model: detect, share: 4, deadline_ms: 100, size_bytes: 60000}
    - {model: describe, share: 1, deadline_ms: 800, size_bytes: 180000}
"""


@pytest.mark.no_cover
def test_a_cloud_is_not_endlessly_fast_when_its_link_is_faster_than_usual(tmp_path: Path) -> None:
    """It seemed to cost nothing to describe, so all that is detected was refused as too dear."""
    (tmp_path / "link.txt").write_text("5\n5\n40\n5\n40\n")
    experiment = written(tmp_path, CHANGING_LINK.replace("FOLDER", str(tmp_path)))
    assert on_time(experiment, "goodput") > on_time(experiment, "edf")
