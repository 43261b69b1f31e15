"""`laxity policy test`: a policy of one's own on trial."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from replay import policy_trial
from scheduler.cli import app

pytestmark = pytest.mark.no_cover

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/policies/shortest_job_first.py"


@pytest.fixture(autouse=True)
def brief(monkeypatch) -> None:
    monkeypatch.setattr(policy_trial, "SCENARIOS", ("load-1_5",))


def test_the_example_is_lawful_and_is_compared():
    result = CliRunner().invoke(app, ["policy", "test", str(EXAMPLE), "--json"])
    figures = json.loads(result.stdout)
    assert (result.exit_code, figures["policy"]) == (0, "ShortestJobFirst")
    assert [check["problem"] for check in figures["checks"]] == [None] * 7
    shares = figures["on_time_share"]["load-1_5"]
    assert list(shares) == ["ShortestJobFirst", "goodput", "edf", "fcfs"]
    assert all(0.1 < share < 1 for share in shares.values())


def test_a_policy_that_breaks_a_law_fails_and_is_not_played(tmp_path):
    wrong = tmp_path / "sleepy.py"
    wrong.write_text("class Sleepy:\n    def decide(self, view):\n        return ()\n")
    result = CliRunner().invoke(app, ["policy", "test", str(wrong)])
    assert result.exit_code == 1
    assert re.search(r"FAIL keeps the laws.*\n\s+4 \(work conservation\)", result.stdout)
    assert "the scenarios were not played" in result.stdout


def test_the_tutorial_shows_the_example():
    tutorial = (ROOT / "docs/tutorial-policy.md").read_text()
    code = EXAMPLE.read_text().split('"""')[2].strip()
    assert code in tutorial
