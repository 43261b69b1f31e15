"""`laxity replay`: what it plays, what it says, and how it says no."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest

from replay.journal_files import journal_files
from replay.live.processes import LiveError
from replay.results import RunResult, read_results
from scheduler import Unavailable
from scheduler.cli.main import main
from tests.replay.test_journal import JournalledBox

FLEET = """
models: [{name: digits, base_ms: 5, per_item_ms: 1, jitter: 0.1, batches: [1, 2, 4]}]
boxes: [{devices: [{id: "cpu:0"}]}]
"""
WORKLOAD = """
requests: 200
process: poisson
load: 0.8
mix: [{model: digits, deadline_ms: 50}]
"""
TRACE = "arrival_ms,qos,deadline_ms\n" + "".join(f"{i * 10},a,40\n" for i in range(100))


@pytest.fixture
def files(tmp_path) -> Path:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "work.yaml").write_text(WORKLOAD)
    (tmp_path / "trace.csv").write_text(TRACE)
    folder: Path = tmp_path
    return folder


@pytest.fixture
def run(files, monkeypatch, capsys):
    """Runs a command line in the folder of the files; exit status, stdout, stderr."""
    monkeypatch.chdir(files)
    monkeypatch.delenv("LAXITY_URL", raising=False)

    def run_it(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["laxity", "replay", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run_it


def rows(path: str | Path = "rows.json") -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(Path(path).read_text())
    return found


def test_a_workload_with_policies_and_seeds(run):
    status, out, _ = run(
        "work.yaml", "--fleet", "fleet.yaml", "--policy", "edf,fcfs", "--seeds", "2",
        "--compare", "edf,fcfs", "--json", "rows.json", "--full", "full.json",
    )  # fmt: skip
    assert status == 0
    assert "on time" in out
    assert "±" in out
    found = rows()
    assert [(row["policy"], row["seed"]) for row in found] == [
        ("edf", 1), ("fcfs", 1), ("edf", 2), ("fcfs", 2)
    ]  # fmt: skip
    assert {row["scenario"] for row in found} == {"work"}
    assert [result.seed for result in read_results("full.json")] == [1, 1, 2, 2]


def test_policies_and_loads_add_up_when_given_several_times(run):
    policies = ["--policy", "edf", "--policy", "fcfs, edf"]
    loads = ["--load", "0.5", "--load", "1"]
    words = ["work.yaml", "--fleet", "fleet.yaml", "--requests", "20", "--no-bound", "--json", "-"]
    status, out, _ = run(*words, *policies, *loads)
    assert status == 0
    assert [(row["policy"], row["load"]) for row in json.loads(out)] == [
        ("edf", 0.5),
        ("fcfs", 0.5),
        ("edf", 1.0),
        ("fcfs", 1.0),
    ]


def test_rows_on_stdout_are_alone_there(run):
    words = ("work.yaml", "--fleet", "fleet.yaml", "--policy", "edf", "--no-bound", "--json", "-")
    status, out, err = run(*words)
    assert status == 0
    assert [row["policy"] for row in json.loads(out)] == ["edf"]
    assert "on time" in err
    assert not Path("-").exists()


def test_a_wrapped_policy_has_options_of_its_own(run):
    hedged = "hedge?inner={name: edf, quantile: 0.9}&extra=0.1"
    words = ("work.yaml", "--fleet", "fleet.yaml", "--no-bound", "--json", "rows.json")
    status, _, err = run(*words, "--policy", f"fcfs,{hedged}", "--compare", f"{hedged},edf")
    assert status == 0, err
    assert [row["policy"] for row in rows()] == ["fcfs", hedged, "edf"]


def test_a_policy_that_raises_is_told_with_what_was_played(run):
    Path("bad.py").write_text(RAISES)
    status, _, err = run("work.yaml", "--fleet", "fleet.yaml", "--policy", "bad.py", "--load", "2")
    assert status == 2
    told = "policy 'bad.py' on work, load 2, seed 1 failed: IndexError: list index out of range"
    assert f"{told}, at bad.py:3" in err


RAISES = "class Raises:\n    def decide(self, view):\n        return [][3]\n"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_policy_that_fails_takes_nothing_from_the_others(run, jobs):
    Path("bad.py").write_text(RAISES)
    status, out, err = run(
        "work.yaml", "--fleet", "fleet.yaml", "--policy", "edf,bad.py,fcfs", "--seeds", "2",
        "--jobs", jobs, "--compare", "edf,bad.py", "--json", "rows.json", "--report", "r.html",
    )  # fmt: skip
    assert status == 2
    faults = [line for line in err.splitlines() if "failed: IndexError" in line]
    assert [line.partition(" failed")[0] for line in sorted(faults)] == [
        f"laxity: policy 'bad.py' on work, load 0.8, seed {seed}" for seed in (1, 2)
    ]
    assert [(row["policy"], row["seed"]) for row in rows()] == [
        ("edf", 1), ("fcfs", 1), ("edf", 2), ("fcfs", 2)
    ]  # fmt: skip
    for shown in (out, Path("r.html").read_text()):
        assert "fcfs" in shown
        assert "policy 'bad.py' on work, load 0.8, seed 2 failed" in " ".join(
            html.unescape(shown).split()
        )


@pytest.mark.parametrize("change", ["view.queues.clear()", "view.targets['cpu:0'].runs.clear()"])
def test_a_policy_that_breaks_the_view_is_blamed_and_the_others_are_played(run, change):
    Path("bad.py").write_text(
        "from policies.edf import Edf\n"
        "class Vandal(Edf):\n    def decide(self, view):\n"
        f"        yield from super().decide(view)\n        {change}\n"
    )
    status, out, err = run("work.yaml", "--fleet", "fleet.yaml", "--policy", "bad.py,edf")
    assert status == 2
    assert "laxity: policy 'bad.py' on work, load 0.8, seed 1 failed: " in err
    assert "did the policy change the view, which is read-only?" in err
    assert "edf" in out


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_a_policy_prints_is_no_part_of_the_rows(files, jobs):
    (files / "chatty.py").write_text(
        "from policies.edf import Edf\nprint('read')\n"
        "class Chatty(Edf):\n    def decide(self, view):\n"
        "        print('decides')\n        return super().decide(view)\n"
    )
    asked = ["work.yaml", "--fleet", "fleet.yaml", "--policy", "chatty.py", "--requests", "9"]
    asked += ["--seeds", "2", "--jobs", jobs, "--no-bound", "--json", "-"]
    ended = subprocess.run(
        [sys.executable, "-m", "scheduler.cli", "replay", *asked],
        capture_output=True,
        text=True,
        cwd=files,
        check=True,
    )
    assert [row["requests"] for row in json.loads(ended.stdout)] == [9, 9]
    assert {"read", "decides"} <= set(ended.stderr.splitlines())


def test_a_policy_that_fails_in_one_scenario_is_played_in_the_others(run):
    Path("some.py").write_text(
        "from policies import make_policy\n\n"
        "class Some:\n    def __init__(self):\n        self.inner = make_policy('edf')\n"
        "    def decide(self, view):\n        sorted(view.targets)[3]\n"
        "        return self.inner.decide(view)\n"
    )
    status, out, err = run(
        "scenarios", "--only", "fleet-[28]", "--policy", "edf,some.py", "--requests", "30",
        "--no-bound", "--json", "rows.json",
    )  # fmt: skip
    assert status == 2, err
    assert [(row["scenario"], row["policy"]) for row in rows()] == [
        ("fleet-2", "edf"), ("fleet-8", "edf"), ("fleet-8", "some.py")
    ]  # fmt: skip
    assert "policy 'some.py' on fleet-2" in err
    assert "did not all play the same cases" in " ".join(out.split())


def test_what_was_played_until_ctrl_c_is_shown_and_written(run, monkeypatch):
    monkeypatch.setenv("MADE", "0")
    Path("tired.py").write_text(
        "import os\nfrom policies.edf import Edf\n\n"
        "class Tired(Edf):\n    def __init__(self):\n        super().__init__()\n"
        "        os.environ['MADE'] = str(int(os.environ['MADE']) + 1)\n"
        "    def decide(self, view):\n        if int(os.environ['MADE']) == 4:\n"
        "            raise KeyboardInterrupt\n        return super().decide(view)\n"
    )
    status, out, _ = run(
        "work.yaml", "--fleet", "fleet.yaml", "--policy", "tired.py", "--seeds", "4",
        "--no-bound", "--json", "rows.json",
    )  # fmt: skip
    assert status == 130
    assert [row["seed"] for row in rows()] == [1, 2]
    assert "tired.py" in out
    assert "stopped early: this is 2 of 4 seeds" in out


@pytest.mark.parametrize(
    ("policies", "bound", "told"),
    [
        ("edf,tired.py,fcfs", "--no-bound", "after 1 of 3 policies"),
        ("edf,fcfs", "--bound", "before its bound was known"),
    ],
)
def test_policies_that_were_played_until_ctrl_c_are_shown(run, monkeypatch, policies, bound, told):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("replay.experiment.closest_bound", interrupted)
    Path("tired.py").write_text(
        "from policies.edf import Edf\n\n"
        "class Tired(Edf):\n    def decide(self, view):\n        raise KeyboardInterrupt\n"
    )
    words = ["work.yaml", "--fleet", "fleet.yaml", "--load", "3", bound, "--json", "rows.json"]
    status, out, _ = run(*words, "--policy", policies)
    assert status == 130
    assert [row["policy"] for row in rows()] == (["edf", "fcfs"] if bound == "--bound" else ["edf"])
    assert f"work, load 3, seed 1, was stopped {told}" in " ".join(out.split())


def test_a_policy_that_raises_ctrl_c_in_a_process_of_its_own_stops_as_it_would_here(run):
    Path("tired.py").write_text(
        "from policies.edf import Edf\n\n"
        "class Tired(Edf):\n    def decide(self, view):\n        raise KeyboardInterrupt\n"
    )
    words = ["load-0_5", "--requests", "9", "--seeds", "2", "--no-bound", "--json", "rows.json"]
    status, _, err = run(*words, "--policy", "edf,tired.py", "--jobs", "2")
    assert (status, err.count("process")) == (130, 0)
    assert [row["policy"] for row in rows()] in (["edf"], ["edf", "edf"])


def test_a_reader_of_the_rows_that_goes_away_takes_nothing_else(files):
    laxity = f"{sys.executable} -m scheduler.cli replay load-0_5 --requests 9 --no-bound"
    ended = subprocess.run(
        ["bash", "-c", f"{laxity} --seeds 40 --json - --full full.json | true"],
        cwd=files, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "on time" in ended.stderr
    assert "laxity:" not in ended.stderr
    assert len(read_results(files / "full.json")) == 120


def test_a_file_that_the_user_may_not_write_is_refused_before_anything_is_played():
    as_another = """
import os
from pathlib import Path
from scheduler.cli.places import check_places
if os.geteuid() == 0:
    os.setuid(65534)
try:
    check_places(Path("/usr/rows.json"))
except Exception as error:
    print(error)
"""
    said = subprocess.check_output([sys.executable, "-c", as_another], text=True)
    assert said == "/usr/rows.json can't be written by this user\n"


def test_a_folder_that_the_user_may_not_look_into_is_told_to_be_one(tmp_path):
    as_another = """
import os, sys
from pathlib import Path
from replay.journal_files import journal_files
from scheduler.cli.places import check_places
if os.geteuid() == 0:
    os.setuid(65534)
folder = Path("closed")
for check in (check_places, journal_files):
    try:
        check(folder / "r.html" if check is check_places else folder)
    except Exception as error:
        print(type(error).__name__, error)
"""
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o755)
        closed = Path(outer, "closed")
        closed.mkdir(mode=0)
        words = [sys.executable, "-c", as_another]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        said = subprocess.check_output(words, text=True, cwd=outer, env=environ)
    assert said == (
        "WrongUsage closed/r.html can't be written by this user\n"
        "JournalError closed: can't be read (Permission denied); expected a journal's folder\n"
    )


def test_a_chart_of_too_little_is_not_drawn_and_the_rest_is_given(run, monkeypatch):
    monkeypatch.setattr("replay.experiment.Experiment.bound", interrupted_at(2))
    played = ["work.yaml", "--fleet", "fleet.yaml", "--policy", "edf", "--load", "1.5,2"]
    status, out, err = run(*played, "--seeds", "3", "--chart", "c.svg", "--json", "rows.json")
    assert status == 2
    assert "c.svg is not written: nothing was played at two loads" in err
    assert [row["seed"] for row in rows()] == [1, 2]
    assert "edf" in out


def interrupted_at(seed: int) -> Callable[[object, int], float]:
    def bound(_: object, asked: int) -> float:
        if asked == seed:
            raise KeyboardInterrupt
        return 1.0

    return bound


def test_a_seed_without_requests_does_not_hide_those_of_another(run):
    Path("few.yaml").write_text(
        "seconds: 1\nprocess: poisson\nrate_per_s: 0.7\nmix: [{model: digits, deadline_ms: 50}]\n"
    )
    played = ["few.yaml", "--fleet", "fleet.yaml", "--policy", "edf", "--json", "rows.json"]
    status, _, err = run(*played, "--seeds", "1")
    assert (status, err) == (2, "laxity: few.yaml has no request (seed 1)\n")
    assert run(*played, "--seeds", "4")[0] == 0
    assert [row["requests"] for row in rows()] == [0, 0, 2, 0]


def test_the_load_can_be_set(run):
    options = "work.yaml", "--fleet", "fleet.yaml", "--policy", "edf", "--no-bound", "--json"
    run(*options, "a.json", "--load", "2")
    run(*options, "b.json")
    (twice,), (usual,) = rows("a.json"), rows("b.json")
    assert (twice["load"], usual["load"]) == (2, 0.8)
    assert twice["on_time_share"] < usual["on_time_share"]  # type: ignore[operator]


def test_several_loads_are_a_chart(run):
    status, _, err = run(
        "work.yaml", "--fleet", "fleet.yaml", "--policy", "edf,fcfs", "--load", "1,0.5,2",
        "--requests", "60", "--json", "rows.json", "--report", "r.html", "--chart", "c.svg",
    )  # fmt: skip
    assert status == 0
    assert "the chart is in c.svg" in err
    assert [row["load"] for row in rows()] == [1, 1, 0.5, 0.5, 2, 2]
    for page in (Path("r.html").read_text(), Path("c.svg").read_text()):
        assert "On-time share over load in work" in page
        assert "edf at load 0.5" in page


@pytest.mark.parametrize("load", ["0", "-1", "inf", "nan", "1,", "much", "0.5;1"])
def test_a_load_is_a_share_of_what_the_fleet_can_do(run, load):
    status, _, err = run("work.yaml", "--fleet", "fleet.yaml", "--load", load)
    assert status == 2
    assert "--load takes numbers from 0.001, such as 0.8 or 0.5,1,2" in err


def test_a_chart_over_load_needs_two(run):
    status, _, err = run("work.yaml", "--fleet", "fleet.yaml", "--chart", "c.svg")
    assert status == 2
    assert "--chart is drawn over the load of a workload or scenario: give several" in err


def test_a_trace_is_cut_scaled_and_given_a_model(run):
    options = "--fleet", "fleet.yaml", "--policy", "edf", "--no-bound", "--json", "rows.json"
    run("trace.csv", *options)
    assert rows()[0]["requests"] == 100
    run("trace.csv", *options, "--slice", "0.5:", "--speed", "2", "--rate-scale", "2")
    assert 80 <= rows()[0]["requests"] <= 100  # type: ignore[operator]
    assert rows()[0]["bound_share"] is None


def test_a_trace_that_names_models_is_played_with_them(run):
    models = "{name: digits, base_ms: 5, per_item_ms: 1}, {name: faces, base_ms: 9, per_item_ms: 1}"
    Path("two.yaml").write_text(f'models: [{models}]\nboxes: [{{devices: [{{id: "cpu:0"}}]}}]\n')
    told = "".join(f"{at * 20},{'faces' if at % 4 else 'digits'},40\n" for at in range(40))
    Path("named.csv").write_text(f"arrival_ms,model,deadline_ms\n{told}")
    options = "--fleet", "two.yaml", "--policy", "edf", "--no-bound", "--full", "full.json"
    _, out, _ = run("named.csv", *options)
    assert "every request of the trace is for the model that it names" in out.replace("\n", " ")
    (played,) = read_results("full.json")
    assert {name: tally.requests for name, tally in played.by("model").items()} == {
        "digits": 10,
        "faces": 30,
    }
    run("named.csv", *options, "--model", "faces")
    (played,) = read_results("full.json")
    assert list(played.by("model")) == ["faces"]
    Path("named.csv").write_text(f"arrival_ms,model,deadline_ms\n{told}{'900,face,40'}\n")
    status, _, err = run("named.csv", *options)
    assert (status, "the trace's model 'face' as its model" in err) == (2, True)
    assert "did you mean 'faces'?" in err


def test_bare_numbers_are_rates_unless_their_unit_is_told(run):
    Path("t.txt").write_text("".join(f"{at}\n" for at in (10, 20, 30)))
    options = "--fleet", "fleet.yaml", "--policy", "edf", "--no-bound", "--json", "rows.json"
    status, out, err = run("t.txt", *options)
    assert (status, rows()[0]["requests"]) == (0, 60)
    assert out.startswith("t · 60 requests")
    guess = "read as requests per second; if they are times, give their unit with"
    assert f"{guess} --format" in " ".join(out.split())
    assert err.count(f"laxity: the numbers of t.txt are {guess} --format") == 1
    Path("w.yaml").write_text(
        "{process: trace, path: t.txt, mix: [{model: digits, deadline_ms: 50}]}"
    )
    assert f"the numbers of t.txt are {guess} `format`" in run("w.yaml", *options)[2]
    assert "has 30.1 ms to its deadline, 5 times its base latency" in " ".join(out.split())
    out = run("t.txt", *options, "--deadline-ms", "40")[1]
    assert "for model 'digits'" in out
    assert "to its deadline" not in out
    status, out, err = run("t.txt", *options, "--format", "timestamps-ms", "--slice", "0.01:")
    assert (status, rows()[0]["requests"]) == (0, 2)
    assert guess not in " ".join(out.split()) + err
    status, _, err = run("t.txt", *options, "--format", "timestamps")
    assert status == 2
    assert "t.txt:1: the time is '10', a number without a unit; expected the format tim" in err


def test_seconds_in_place_of_ms_are_told(run):
    lines = [f"{1_700_000_000 + i / 100:.2f},a,40\n" for i in range(100)]
    Path("seconds.csv").write_text("arrival_ms,qos,deadline_ms\n" + "".join(lines))
    words = ("--fleet", "fleet.yaml", "--policy", "edf", "--no-bound")
    told = "the first 100 requests of seconds.csv come within 0.00099 s, over 20 times as fast"
    for cut in ((), ("--slice", "0.0009:")):
        status, out, err = run("seconds.csv", *cut, *words)
        assert status == 0
        assert f"laxity: {told}" in err
        assert told in " ".join(out.split())
    for source in (("trace.csv",), ("seconds.csv", "--speed", "0.001")):
        assert "as fast" not in run(*source, *words)[2]


def test_deadlines_that_are_moments_are_told(run):
    head, begin_ms = "arrival_ms,qos,deadline_ms\n", 1_700_000_000_000
    for name, start_ms in (("dated.csv", begin_ms), ("clock.csv", 0)):
        times = [(start_ms + i * 10, 30 + i % 7) for i in range(100)]
        Path(name).write_text(head + "".join(f"{at},a,{at + left}\n" for at, left in times))
    Path("together.csv").write_text(head + "5,a,40\n" * 20)
    words = ("--fleet", "fleet.yaml", "--policy", "edf", "--no-bound")
    for source in (("dated.csv",), ("clock.csv",), ("clock.csv", "--speed", "8")):
        told = f"the deadlines of the first 100 requests of {source[0]} rise as their arrivals do"
        status, out, err = run(*source, *words)
        assert status == 0
        assert f"laxity: {told}" in err
        assert told in " ".join(out.split())
    for source in (("trace.csv",), ("together.csv",), ("dated.csv", "--deadline-ms", "40")):
        assert "rise as" not in run(*source, *words)[2]


def test_a_damaged_file_of_a_journal_is_left_out_and_named(run):
    box = JournalledBox(Path("days"), "goodput", 3, bytes=100_000, files=20)
    box.live(400)
    box.close()
    options = "days", "--policy", "edf", "--no-bound", "--json", "rows.json"
    run(*options)
    (whole,) = rows()
    bad = journal_files("days")[1]
    bad.write_bytes(bad.read_bytes()[:17] + b"\xc1" * 50)
    status, _, err = run(*options)
    assert status == 0
    assert err.count(f"{bad}, record 1: no msgpack") == 1, "each is said once"
    assert "the file is left out" in err
    (row,) = rows()
    assert 0 < row["requests"] < whole["requests"]  # type: ignore[operator]
    told = f"{bad}, record 1: no msgpack"
    assert told in str(row["notes"]), "whoever sees only the rows"
    words = ["--fleet", "days", "--requests", "50", "--seeds", "2", "--jobs", "2"]
    ended = subprocess.run(
        [sys.executable, "-m", "scheduler.cli", "replay", *options, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ended.stderr.count(told), ended.stderr.count("Warning")) == (1, 0)
    assert told in str(rows()[-1]["notes"])
    status, out, err = run("days", "--verify")
    assert (status, out) == (2, "")
    assert f"{bad}, record 1: no msgpack" in err


def test_a_part_of_a_journal_without_requests_is_told_as_one(run):
    box = JournalledBox(Path("days"), "goodput", 3)
    box.live(20)
    box.close()
    for words, said in [
        (["--slice", "999:"], "days has no request in 999:"),
        (["--rate-scale", "0.001"], "days has no request that --rate-scale 0.001 leaves"),
        (["--slice", "0:1", "--rate-scale", "0.001"], "in 0:1 that --rate-scale 0.001 leaves"),
    ]:
        status, out, err = run("days", "--policy", "edf", "--no-bound", *words)
        assert (status, out) == (2, "")
        assert said in err


def test_scenarios_write_their_rows(run):
    status, out, _ = run(
        "scenarios", "--only", "load-*", "--requests", "50", "--policy", "edf", "--json",
        "rows.json", "--no-bound",
    )  # fmt: skip
    assert status == 0
    assert "load-0_5" in out
    assert len(rows()) == 7
    assert {"scenario", "policy", "seed", "on_time_share", "bound_share", "p99_ms"} <= set(
        rows()[0]
    )


def test_one_scenario_by_its_name_and_a_report(run):
    status, _, err = run(
        "drift-2x", "--requests", "100", "--policy", "edf,fcfs", "--report", "report.html"
    )
    assert status == 0
    assert "report.html" in err
    assert "<html" in Path("report.html").read_text()


def test_a_file_may_be_called_as_the_scenario_is(run):
    for _ in range(2):  # the second time it is there
        status, _, err = run("load-0_5", "--requests", "9", "--no-bound", "--json", "load-0_5")
        assert status == 0, err
        assert rows("load-0_5")[0]["scenario"] == "load-0_5"
    status, _, err = run("./load-0_5", "--fleet", "fleet.yaml", "--no-bound")
    assert status == 2
    assert "load-0_5:1: a first line of no known format" in err
    assert "\n  deadlines: arrival_ms,qos,deadline_ms\n" in err, "each known one has a line"


def test_without_a_box_it_is_said_how_to_name_targets(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("LAXITY_URL", raising=False)
    status, _, err = run("trace.csv")
    assert status == 1
    assert err.endswith(
        "is edge_agent running? It listens some seconds after its start. "
        "Without a box, name the targets with --fleet FILE\n"
    )


@pytest.mark.parametrize("words", [["work.yaml"], ["work.yaml", "--fleet", "live"]])
def test_the_targets_are_those_of_the_box_that_is_named(run, words):
    at = "unix:///nowhere/other.sock"
    assert f"cannot reach the daemon at {at}" in run(*words, "--url", at)[2]
    assert "'10.0.0.7:8702' is not an address" in run(*words, "--url", "10.0.0.7:8702")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lod-0_5"], "did you mean 'load-0_5'?"),
        (["lod-0_5.csv"], "laxity: there is no file lod-0_5.csv (did you mean 'load-0_5'?)\n"),
        (["load-0.5"], "laxity: there is no file load-0.5 (did you mean 'load-0_5'?)\n"),
        (["./load-0.5"], "laxity: there is no file ./load-0.5\n"),
        (["work.yml"], "laxity: there is no file work.yml (did you mean 'work.yaml'?)\n"),
        (["load-0_5", "--fleet", "flete.yaml"], "file or directory (did you mean 'fleet.yaml'?)"),
        (["-", "--fleet", "fleet.yaml", "--format", "rates"], "stdin can't be played: a trace is"),
        (["nofile", "--fleet", "fleet.yaml", "--format", "rates"], "no file and no scenario"),
        (["days/journal"], "laxity: there is no file days/journal\n"),
        (["scenarios", "--only", "nix"], "no scenario fits 'nix'"),
        (["load-0_5", "--slice", "1:2"], "--slice is for traces and journals"),
        (["load-0_5", "--policy", "efd"], "did you mean 'edf'?"),
        (["load-0_5", "--against", "life"], "--against is sim or live"),
        (["load-0_5", "--compare", "edf"], "--compare takes two policies"),
        (["load-0_5", "--json", "no/where.json"], "there is no folder no"),
        (["load-0_5", "--report", "empty"], "empty is a folder"),
        (["work.yaml", "--fleet", "fleet.yaml", "--json", "./work.yaml"], "is an input"),
        (["work.yaml", "--fleet", "fleet.yaml", "--report", "fleet.yaml"], "is an input"),
        (
            ["load-0_5", "--policy", "broken.py", "--json", "broken.py"],
            "exists and is not a result",
        ),
        (
            ["trace.csv", "--fleet", "fleet.yaml", "--full", "work.yaml"],
            "exists and is not a result",
        ),
        (["load-0_5", "--full", "-"], "- is not a file; name one to write to, or /dev/stdout"),
        (
            ["trace.csv", "--fleet", "fleet.yaml", "--slice", "-5:5"],
            "in seconds with 0 <= FROM < TO",
        ),
        (["work.yaml", "--fleet", "tcp://box"], "'tcp://box' lacks a port: tcp://HOST:PORT"),
        (["load-0_5", "--only", "load-*"], "--only is for 'scenarios'"),
        (["trace.csv", "--fleet", "fleet.yaml", "--deadline-ms", "inf"], "a number is too large"),
        (["load-0_5", "--requests", "9", "--policy", "broken.py"], "broken.py"),
        (["load-0_5", "--requests", "9", "--policy", "unmade.py"], "RuntimeError: no"),
        (["load-0_5", "--policy", "goodput?quantile=["], "quantile has a value that can't be read"),
        (["empty", "--fleet", "fleet.yaml", "--model", "digits"], "--model is for traces"),
        (
            ["trace.csv", "--fleet", "fleet.yaml", "--slice", "0:inf"],
            "--slice is FROM:TO in seconds with 0 <= FROM",
        ),
        (["trace.csv", "--fleet", "fleet.yaml", "--slice", "0:1e300"], "FROM < TO <= 1e+12"),
        (["trace.csv", "--fleet", "fleet.yaml", "--load", "1"], "give it a --rate-scale"),
        (["trace.csv", "--fleet", "fleet.yaml", "--slice", "9"], "--slice is FROM:TO"),
        (["trace.csv", "--fleet", "fleet.yaml", "--model", "digit"], "did you mean 'digits'?"),
        (["trace.csv", "--fleet", "fleet.yaml", "--format", "azur"], "unknown trace format"),
        (["bad.csv", "--fleet", "fleet.yaml"], "bad.csv:3: "),
        (["far.csv", "--fleet", "fleet.yaml", "--no-bound"], "far.csv:3: an arrival 146 years"),
        (["empty", "--fleet", "fleet.yaml"], "no file named *.journal"),
        (["work.yaml", "--fleet", "none.yaml"], "none.yaml: can't be read"),
        (["fleet.yaml", "--fleet", "fleet.yaml"], "is a fleet: give it with --fleet, and play a"),
        (["traced.yaml", "--fleet", "fleet.yaml", "--model", "digits"], "--model is for a trace g"),
        (["load-0_5", "--policy", "goodput?quantile=!!bool x"], "quantile has a value that can't"),
        (["odd.yaml", "--fleet", "fleet.yaml"], "odd.yaml: "),
        (["half.yaml"], "half.yaml: workload: missing; it has no default\n"),
        (
            ["torn.yaml", "--fleet", "fleet.yaml"],
            "torn.yaml:2: not YAML: expected the node content",
        ),
        (["load-0_5", "--verify"], "there is no journal load-0_5; --verify takes a journal's"),
        (["empty", "--verify", "--policy", "edf"], "--verify plays nothing: leave out --policy"),
        (["work.yaml", "--against", "live", "--policy", "edf"], "own: leave out --policy"),
    ],
)
def test_what_cannot_be_played_is_said_in_a_line(run, words, said):
    Path("empty").mkdir()
    Path("traced.yaml").write_text("process: trace\npath: trace.csv\nmix: [{model: digits}]\n")
    Path("odd.yaml").write_text("process: !!bool x\n")
    Path("half.yaml").write_text("about: a\nfleet: fleet.yaml\n")
    Path("torn.yaml").write_text("process: gamma\nmix: [")
    Path("broken.py").write_text("class P:\n    def decide(self, view):\n        1 / 0\n")
    Path("unmade.py").write_text(
        "class P:\n"
        "    def __init__(self):\n        raise RuntimeError('no')\n"
        "    def decide(self, view):\n        return ()\n"
    )
    Path("bad.csv").write_text("arrival_ms,qos,deadline_ms\n0,a,40\n10,a,soon\n")
    Path("far.csv").write_text(f"arrival_ms,qos,deadline_ms\n0,a,40\n{10**14},a,40\n")
    status, out, err = run(*words)
    assert status == 2
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_a_trace_in_a_pipe_is_refused_for_what_it_is(run, files):
    os.mkfifo(files / "pipe")
    status, _, err = run("pipe", "--fleet", "fleet.yaml")
    assert (status, err.count("\n")) == (2, 1)
    assert "pipe is a pipe" in err


def test_several_processes_send_to_a_running_box(run, monkeypatch):
    def play(experiment, seed, url, processes, _progress):
        if processes == 3:
            raise LiveError("process 2 of the load generator has died")
        label, notes = f"with {processes}", ["it was late"]
        return RunResult(experiment.name, label, seed, against="live", notes=notes)

    monkeypatch.setattr("replay.live.experiment.play_experiment", play)
    words = ("work.yaml", "--fleet", "fleet.yaml", "--against", "live", "--json", "rows.json")
    status, out, err = run(*words, "--jobs", "2")
    assert status == 0, err
    assert (out + err).count("it was late") == 1
    assert [row["policy"] for row in rows()] == ["with 2"]
    status, _, err = run(*words, "--jobs", "3")
    assert (status != 0, err) == (True, "laxity: process 2 of the load generator has died\n")


def test_what_was_played_before_a_box_was_gone_is_told(run, monkeypatch):
    def play(experiment, seed, url, processes, _progress):
        if seed == 3:
            raise Unavailable("cannot reach the daemon")
        return RunResult(experiment.name, "edf", seed, against="live")

    monkeypatch.setattr("replay.live.experiment.play_experiment", play)
    words = ("work.yaml", "--fleet", "fleet.yaml", "--against", "live", "--json", "rows.json")
    status, _, err = run(*words, "--seeds", "4")
    assert [row["seed"] for row in rows()] == [1, 2]
    assert (status, err) == (1, "laxity: cannot reach the daemon\n")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_what_was_played_until_ctrl_c_is_told(files, box, jobs):
    mix = "[{model: digits, deadline_ms: 9000}]"
    work = f"{{requests: 3000, process: poisson, rate_per_s: 100, mix: {mix}}}"
    (files / "long.yaml").write_text(work)
    command = [sys.executable, "-m", "scheduler.cli", "replay", "long.yaml"]
    command += ["--fleet", "fleet.yaml", "--against", "live", "--url", box.url]
    command += ["--json", "rows.json", "--jobs", jobs]
    with subprocess.Popen(
        command,
        cwd=files,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        box.wait("infer", 100)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    (row,) = rows(files / "rows.json")
    ended: Any = row["requests"]
    assert 0 < ended < 3000
    assert row["outcomes"] == {"completed": ended}
    assert f"interrupted when {ended:,} requests had ended" in " ".join(out.split())
    assert "Traceback" not in err
    assert process.returncode == 130


def test_what_was_sent_before_a_trace_broke_off_is_told(files, run, box):
    lines = [f"{10 * number},detect,9000" for number in range(60)]
    (files / "short.csv").write_text("\n".join(["arrival_ms,qos,deadline_ms", *lines, "600,det"]))
    played = ["short.csv", "--fleet", "fleet.yaml", "--model", "digits", "--against", "live"]
    status, out, err = run(*played, "--url", box.url, "--json", "rows.json")
    (row,) = rows()
    ended: Any = row["requests"]
    assert 0 < ended <= 60
    assert f"it broke off when {ended:,} requests had ended" in " ".join(out.split())
    assert "short.csv:62: 2 columns" in err
    assert status == 2


def test_what_was_sent_before_a_sender_died_is_told(files, run, box):
    def answer(peer, header):
        peer.answer(header)
        if len(box.seen) == 60:
            active_children()[0].kill()

    box.on_infer = answer
    played = ["trace.csv", "--fleet", "fleet.yaml", "--against", "live", "--url", box.url]
    status, out, err = run(*played, "--jobs", "2", "--json", "rows.json")
    (row,) = rows()
    assert f"it broke off when {row['requests']} requests had ended" in out
    assert err.endswith("of the load generator has died\n")
    assert status == 1


def test_a_long_run_against_a_box_says_how_far_it_is(files, run, box, monkeypatch):
    monkeypatch.setattr("scheduler.cli.progress.EVERY_S", 0.01)
    monkeypatch.setattr("replay.live.replay.PROGRESS_S", 0.01)
    played = ["trace.csv", "--fleet", "fleet.yaml", "--against", "live", "--url", box.url]
    status, _, err = run(*played)
    assert status == 0
    assert re.search(r"laxity: playing: 0 of 1, [1-9]\d* requests sent, \d+ ended", err)


def test_a_result_is_replaced_and_a_link_to_it_is_the_same_file(run, files):
    played = ["load-0_5", "--policy", "edf", "--requests", "9", "--no-bound"]
    (files / "link.json").symlink_to("rows.json")
    for _ in range(2):
        assert run(*played, "--json", "rows.json", "--report", "page.html")[0] == 0
    status, _, err = run(*played, "--json", "rows.json", "--full", "link.json")
    assert (status, err) == (2, f"laxity: {files / 'rows.json'} is named twice\n")
    assert len(rows(files / "rows.json")) == 1


def test_requests_are_the_end_of_a_workload_without_one(run, files):
    text = "{process: poisson, rate_per_s: 50, mix: [{model: digits, deadline_ms: 50}]}"
    (files / "endless.yaml").write_text(text)
    played = ["endless.yaml", "--fleet", "fleet.yaml", "--policy", "edf", "--no-bound"]
    assert "has no end; give it seconds or requests" in run(*played)[2]
    assert run(*played, "--requests", "20", "--json", "rows.json")[0] == 0
    (row,) = rows(files / "rows.json")
    assert row["requests"] == 20


def test_the_trace_that_a_workload_names_is_not_replaced(run, files):
    trace = '{"timestamp": 0, "input_length": 1, "output_length": 2}\n' * 3
    (files / "moon.jsonl").write_text(trace)
    mix = "mix: [{model: digits, deadline_ms: 100}]"
    (files / "moon.yaml").write_text(f"{{process: trace, path: moon.jsonl, {mix}}}")
    played = ["moon.yaml", "--fleet", "fleet.yaml", "--policy", "edf", "--no-bound"]
    status, _, err = run(*played, "--json", "moon.jsonl")
    assert (status, err) == (
        2, "laxity: moon.jsonl is an input; name another file to write to\n"
    )  # fmt: skip
    assert (files / "moon.jsonl").read_text() == trace
    assert run(*played, "--json", "rows.json")[0] == 0


def test_files_of_the_same_name_are_refused_before_anything_is_played(run):
    status, _, err = run("load-0_5", "--json", "rows.json", "--full", "./rows.json")
    assert (status, err) == (2, f"laxity: {Path.cwd()}/rows.json is named twice\n")


def test_without_a_box_or_a_fleet_it_says_so(run, monkeypatch):
    monkeypatch.setenv("LAXITY_URL", "unix:///nowhere/laxity.sock")
    status, _, err = run("work.yaml")
    assert status == 1
    assert "laxity: " in err


@pytest.mark.parametrize(
    ("decide", "place"),
    [
        (
            "while True:\n            try: list(range(100))\n            except Exception: pass\n",
            "at",
        ),
        ("yield Wake(view.now_ns + 1, 'again')\n", ""),
    ],
    ids=["never returns", "wakes itself up at every nanosecond"],
)
def test_a_policy_that_comes_to_no_end_is_named(files, decide, place):
    """In a process of its own, because the tests' own limit of time uses the same alarm."""
    policy = files / "endless.py"
    policy.write_text(
        "from scheduler.core.policy import Wake\n"
        f"class Endless:\n    def decide(self, view):\n        {decide}"
    )
    code = (
        "from replay import headway; from scheduler.cli.main import main; "
        "headway.LIMIT_S = 2.0; main()"
    )
    asked = ["work.yaml", "--fleet", "fleet.yaml", "--policy", "endless.py"]
    ended = subprocess.run(
        [sys.executable, "-c", code, "replay", *asked],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=files,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    told = "policy 'endless.py' on work, load 0.8, seed 1 has been deciding for 2 s, 0.0"
    assert told in ended.stderr
    assert f"{place} endless.py:" in ended.stderr or not place
