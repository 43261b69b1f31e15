"""`laxity policy test`: a policy of one's own on trial."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from replay import policy_trial
from replay.conformance import CHECKS
from scheduler.cli.main import command_line

pytestmark = pytest.mark.no_cover

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/policies/shortest_job_first.py"


@pytest.fixture(autouse=True)
def brief(monkeypatch) -> None:
    monkeypatch.setattr(policy_trial, "SCENARIOS", ("load-1_5",))


def test_the_example_is_lawful_and_is_compared():
    result = CliRunner().invoke(command_line(), ["policy", "test", str(EXAMPLE), "--json"])
    figures = json.loads(result.stdout)
    assert (result.exit_code, figures["policy"]) == (0, "ShortestJobFirst")
    assert [check["problem"] for check in figures["checks"]] == [None] * len(CHECKS)
    shares = figures["on_time_share"]["load-1_5"]
    assert list(shares) == ["ShortestJobFirst", "goodput", "edf", "fcfs"]
    assert all(0.1 < share < 1 for share in shares.values())
    assert list(figures["us_per_request"]) == list(shares)
    assert min(figures["us_per_request"].values()) > 0


def test_options_are_given_as_to_a_replay():
    result = CliRunner().invoke(command_line(), ["policy", "test", "edf?quantile=0.5", "--json"])
    figures = json.loads(result.stdout)
    assert (result.exit_code, figures["policy"]) == (0, "Edf?quantile=0.5")
    shares = figures["on_time_share"]["load-1_5"]
    assert shares["Edf?quantile=0.5"] != shares["edf"]
    result = CliRunner().invoke(command_line(), ["policy", "test", "edf?quantil=0.5"])
    assert "has no option 'quantil'" in str(result.exception)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("godput", "did you mean 'goodput'?"),
        ("nowhere.py", "there is no file"),
        ("edf?quantile=2", "between 0 and 1"),
    ],
)
def test_a_policy_that_is_not_there_is_not_one_that_fails(laxity, name, said):
    status, out, err = laxity("policy", "test", name)
    assert (status, out) == (2, "")
    assert said in err


def test_a_policy_that_breaks_a_law_fails_and_is_not_played(tmp_path):
    wrong = tmp_path / "sleepy.py"
    wrong.write_text("class Sleepy:\n    def decide(self, view):\n        return ()\n")
    result = CliRunner().invoke(command_line(), ["policy", "test", str(wrong)])
    assert result.exit_code == 1
    assert re.search(r"FAIL keeps the laws.*\n\s+4 \(work conservation\)", result.stdout)
    assert "the scenarios were not played" in result.stdout


def test_a_policy_that_fails_in_a_scenario_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(policy_trial, "SCENARIOS", ("unlike-models", "load-1_5", "load-0_5"))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from policies.edf import Edf\n\nclass Wrong(Edf):\n    def decide(self, view):\n"
        "        if any(kind.model == 'classify' for kind in view.queues):\n"
        "            raise KeyError(16)\n        return super().decide(view)\n"
    )
    result = CliRunner().invoke(command_line(), ["policy", "test", str(wrong), "--json"])
    figures = json.loads(result.stdout)
    assert (result.exit_code, figures["lawful"]) == (1, False)
    *lawful, last = figures["checks"]
    assert all(check["problem"] is None for check in lawful)
    assert last["problem"].endswith(f"KeyError: 16, at {wrong}:6")
    result = CliRunner().invoke(command_line(), ["policy", "test", str(wrong)])
    assert f"FAIL {last['check']}" in result.stdout


def test_a_policy_that_ends_the_process_fails(tmp_path):
    wrong = tmp_path / "program.py"
    wrong.write_text("class Ends:\n    def decide(self, view):\n        raise SystemExit(0)\n")
    result = CliRunner().invoke(command_line(), ["policy", "test", str(wrong)])
    assert result.exit_code == 1
    assert "PolicyFailed: SystemExit: 0" in result.stdout


def test_what_a_policy_did_wrong_is_told_with_its_name_and_line(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "class Nonsense:\n    def decide(self, view):\n        yield 3\n"
        "class Raises:\n    def decide(self, view):\n        return self.rule(view)\n"
        "    def rule(self, view):\n        return [float('x') for _ in 'a']\n"
    )
    result = CliRunner().invoke(command_line(), ["policy", "test", f"{wrong}:Nonsense", "--json"])
    first = json.loads(result.stdout)["checks"][0]["problem"]
    assert (
        "Nonsense decided the impossible: that is no decision (Place, Drop, Wake, Hedge): 3"
        in first
    )
    result = CliRunner().invoke(command_line(), ["policy", "test", f"{wrong}:Raises", "--json"])
    first = json.loads(result.stdout)["checks"][0]["problem"]
    assert first.endswith(f"could not convert string to float: 'x', at {wrong}:8")


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("'gpu:9', offer, (head,)", "target 'gpu:9' is not known"),
        ("target.spec.id, offer, ()", "a batch there has 1 to 8 requests"),
        ("target.spec.id, offer, (head,) * 9", "a batch there has 1 to 8 requests"),
    ],
)
def test_a_batch_that_can_not_be_sent_is_told_as_on_a_box(tmp_path, place, said):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from scheduler.core.policy import Place\n"
        "class Wrong:\n    def decide(self, view):\n"
        "        batches = [\n"
        "            (queue.head(), target, offer)\n"
        "            for queue in view.queues.values()\n"
        "            for target in view.open_targets()\n"
        "            for offer in target.usable(queue.kind)\n"
        "        ]\n"
        "        for head, target, offer in batches:\n"
        f"            yield Place({place}, '')\n"
    )
    result = CliRunner().invoke(command_line(), ["policy", "test", str(wrong), "--json"])
    first = json.loads(result.stdout)["checks"][0]["problem"]
    assert f"Wrong decided the impossible: {said}: Place(" in first


def test_what_a_policy_prints_is_not_among_the_figures(tmp_path):
    chatty = tmp_path / "chatty.py"
    chatty.write_text(
        "print('loaded')\n"
        "class Chatty:\n"
        "    def decide(self, view):\n"
        "        print('asked')\n"
        "        return ()\n"
    )
    result = CliRunner().invoke(command_line(), ["policy", "test", str(chatty), "--json"])
    assert not json.loads(result.stdout)["lawful"]
    assert {"loaded", "asked"} <= set(result.stderr.splitlines())
    config = tmp_path / "edge.yaml"
    config.write_text(f"policy: {{name: {chatty}}}")
    result = CliRunner().invoke(command_line(), ["config", "check", str(config), "--json"])
    assert json.loads(result.stdout)["policy"]["name"] == str(chatty)


SPINS = "            try: list(range(100))\n            except Exception: pass\n"
DECIDES = "            yield Wake(view.now_ns + 1, 'soon')\n"


@pytest.mark.parametrize(("body", "around"), [(SPINS, ""), (DECIDES, ""), (SPINS, "hedge?inner=")])
def test_a_policy_that_comes_to_no_end_is_told_with_its_line(tmp_path, body, around):
    """In a process of its own, because the tests' own limit of time uses the same alarm."""
    endless = tmp_path / "endless.py"
    endless.write_text(
        "from scheduler.core.policy import Wake\n"
        "class Endless:\n"
        "    def decide(self, view):\n"
        f"        while True:\n{body}"
    )
    code = (
        "import sys; from scheduler.cli import main, policy; "
        "policy._SLOW_S, policy._LIMIT_S, policy._LOOK_S = 1.0, 2.0, 0.02; "
        f"sys.argv = ['laxity', 'policy', 'test', {around + str(endless)!r}]; main.main()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, cwd=ROOT
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    slow, end = ended.stderr.splitlines()
    place = r"at \S*endless.py:[456]"
    name = "Hedged" if around else "Endless"
    assert re.search(rf"{name} is slow: a check or a scenario has taken 1 s so far, {place}", slow)
    assert re.search(rf"{name} had not finished .* {place}; a decision should", end)


def test_the_tutorial_shows_the_example():
    tutorial = (ROOT / "docs/tutorial-policy.md").read_text()
    code = EXAMPLE.read_text().split('"""')[2].strip()
    assert code in tutorial


def test_what_the_example_imports_tells_type_checkers_its_types():
    """In an installation they look at no package without that file."""
    packages = set(re.findall(r"^from (policies|scheduler)", EXAMPLE.read_text(), re.MULTILINE))
    assert packages == {"policies", "scheduler"}
    assert all((ROOT / package / "py.typed").is_file() for package in packages)
