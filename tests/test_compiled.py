"""A wheel with a compiled scheduler: each module loads alone, and it decides as its sources do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compiled import ROOT, can_compile, install

REPLAY = """
import sys
from scheduler.cli.main import main
sys.argv[1:] = ["replay", "load-1_2", "--policy", "goodput,edf,window", "--requests", "600",
                "--no-bound", "--seeds", "2", "--jobs", "2", "--json", sys.argv[1]]
main()
"""
VALUES = """
import pickle
from scheduler.core.events import BatchDone, Submitted
from scheduler.core.requests import Request, RequestClass
for kind in (BatchDone, Request, Submitted):
    assert type(kind.__init__) is type(object.__init__), f"{kind} is made by the interpreter"
made = Submitted((Request(1, RequestClass("m"), deadline_ns=5, weight=2),))
assert pickle.loads(pickle.dumps(made)) == made
assert made.requests[0].priority == 3
assert BatchDone(1) == BatchDone(1, {}) and BatchDone(1).errors is not BatchDone(1).errors
"""
NUMBERS = """
import policies.goodput
policies.goodput.LEAST_SCALE = 1.0
policies.goodput.Goodput(scale=0.5)
"""
INHERITED = """
from policies.goodput import Goodput
from replay.experiment import PolicyChoice
from replay.scenarios import FOLDER, load_scenario
chosen = []
class Own(Goodput):
    def _next(self, target):
        chosen.append(target.spec.id)
        return super()._next(target)
import sys
sys.modules["own"] = sys.modules["__main__"]
experiment = load_scenario(FOLDER / "load-1_2.yaml").experiment(200)
shares = [experiment.simulate(PolicyChoice.parse(name), 1).on_time_share() for name in
          ("own:Own", "goodput")]
assert chosen and shares[0] == shares[1], (chosen, shares)
"""
LOADED = """
import os, sys
import numpy, scipy.optimize, structlog, yaml  # what takes time, and is not what is asked here
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        __import__(name)
        print(sys.modules[name].__file__, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not can_compile():
        pytest.skip("needs a C compiler and Python's headers")
    target = tmp_path_factory.mktemp("compiled") / "site"
    # Not optimised: that is most of the time that it takes, and not what is asked here.
    done = install(target, "--no-build-isolation", MYPYC_OPT_LEVEL="0")
    assert done.returncode == 0, done.stderr
    return target


def run(program: str, *words: str, path: Path, cwd: Path) -> str:
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(path)}, cwd=cwd, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words}: {done.returncode} {done.stderr}"
    return done.stdout


def modules(folder: Path) -> list[str]:
    names = (path.relative_to(folder) for path in folder.rglob("*.so"))
    return sorted(str(n).split(".")[0].replace("/", ".") for n in names if len(n.parts) > 1)


@pytest.mark.timeout(600)
def test_each_compiled_module_loads_by_itself(compiled, tmp_path):
    found = modules(compiled)
    assert {"policies.goodput", "replay.simulator", "scheduler.core.scheduler"} < set(found)
    loaded = run(LOADED, *found, path=compiled, cwd=tmp_path).splitlines()
    assert len(loaded) == len(found)
    assert all(".so" in file for file in loaded), loaded


@pytest.mark.timeout(600)
def test_values_are_made_by_compiled_code(compiled, tmp_path):
    run(VALUES, path=compiled, cwd=tmp_path)


@pytest.mark.timeout(600)
def test_numbers_with_names_are_compiled_in(compiled, tmp_path):
    run(NUMBERS, path=compiled, cwd=tmp_path)
    with pytest.raises(AssertionError, match="scale must be at least"):
        run(NUMBERS, path=ROOT, cwd=tmp_path)


@pytest.mark.timeout(600)
def test_a_policy_of_ones_own_inherits_from_the_compiled_default(compiled, tmp_path):
    run(INHERITED, path=compiled, cwd=tmp_path)


@pytest.mark.timeout(600)
def test_the_compiled_scheduler_decides_as_its_sources_do(compiled, tmp_path):
    rows: list[object] = []
    for path in (compiled, ROOT):
        file = tmp_path / f"{len(rows)}.json"
        run(REPLAY, str(file), path=path, cwd=tmp_path)
        rows.append(json.loads(file.read_text()))
    assert rows[0] == rows[1]
