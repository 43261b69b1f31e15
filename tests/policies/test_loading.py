"""Policies from outside the package: loaded by name, swapped in without losing a request."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any

import pytest

from policies import POLICIES, make_policy
from policies.edf import Edf
from policies.goodput import Goodput
from replay.laws import Watch
from scheduler import policy_loading
from scheduler.core.commands import Dispatch
from scheduler.core.events import BatchDone, TargetUp
from scheduler.core.outcomes import Outcome
from scheduler.daemon.driver import Driver
from scheduler.policy_loading import files_of, load_offered, load_policy
from tests.core.world import MS, of, request, submit, target

EXAMPLE = Path(__file__).parents[2] / "examples/policies/shortest_job_first.py"

OWN = """
from __future__ import annotations
from dataclasses import dataclass
from policies.edf import Edf

@dataclass
class Options:
    depth: int = 3

class Own(Edf):
    def __init__(self, quantile: float = 0.9, depth: int = 3) -> None:
        super().__init__(quantile)
        self.options = Options(depth)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own_policy.py"
    path.write_text(OWN)
    return path


def test_a_name_of_the_table_is_that_policy():
    assert type(load_policy("edf", quantile=0.9)) is POLICIES["edf"]


def test_a_file_is_a_policy(own):
    named: Any = load_policy(f"{own}:Own", depth=5, quantile=0.8)
    assert (named.options.depth, named.quantile) == (5, 0.8)


def test_a_file_with_one_policy_need_not_name_it(own, monkeypatch):
    assert type(load_policy(str(own))).__name__ == "Own"
    monkeypatch.chdir(own.parent)
    assert type(load_policy("own_policy.py")).__name__ == "Own"


def test_a_class_with_two_names_is_one_policy(own):
    own.write_text(f"{OWN}\nOther = Own\n")
    assert type(load_policy(str(own))).__name__ == "Own"


def test_a_policy_within_another_class_is_named_as_an_entry_point_does(own):
    own.write_text(f"{OWN}\n\nclass Family:\n    Own = Own\n")
    assert type(load_policy(f"{own}:Family.Own")).__name__ == "Own"
    with pytest.raises(ValueError, match=r"own_policy.py has no 'Family\.Onw'"):
        load_policy(f"{own}:Family.Onw")


def test_a_file_is_read_anew(own):
    load_policy(str(own))
    own.write_text(OWN.replace("depth: int = 3)", "depth: int = 4)"))
    changed: Any = load_policy(str(own))
    assert changed.options.depth == 4


def test_the_files_of_a_policy_are_its_own_and_those_of_what_it_wraps(own):
    other = own.with_name("other.py")
    other.write_text("…")
    both = {own: own.read_bytes(), other: other.read_bytes()}
    assert files_of("goodput", {"quantile": 0.9}) == {}
    assert files_of(f"{own}:Own", {"inner": {"name": "hedge", "inner": str(other)}}) == both
    other.unlink()
    assert files_of(str(own), {"inner": str(other)}) == {own: own.read_bytes()}
    other.mkdir()
    assert files_of(str(other), {}) == {}


def test_a_module_and_a_class_are_a_policy(own, monkeypatch):
    monkeypatch.syspath_prepend(own.parent)
    assert type(load_policy("own_policy:Own")).__name__ == "Own"
    assert type(load_policy("policies.edf:Edf")) is Edf
    sys.modules.pop("own_policy")


def test_a_file_that_is_named_without_its_suffix_is_meant(own, monkeypatch):
    monkeypatch.chdir(own.parent)
    with pytest.raises(ValueError, match=r"is not known \(did you mean 'own_policy.py'\?\)"):
        load_policy("own_policy")
    with pytest.raises(ValueError, match=r"\(did you mean 'own_policy.py:Own'\?\)$"):
        load_policy("own_policy:Own")
    own.with_name("other.py").write_text("import nowhere_to_be_found")
    monkeypatch.syspath_prepend(str(own.parent))
    with pytest.raises(ValueError, match=r"No module named 'nowhere_to_be_found'$"):
        load_policy("other:Own")
    with pytest.raises(ValueError, match="is not known; there are"):  # files are no one else's
        load_offered("own_policy")


def test_an_import_of_a_file_beside_a_policy_is_told_for_what_it_is(own):
    own.write_text("import beside_it")
    with pytest.raises(ValueError, match=r"No module named 'beside_it'$"):
        load_policy(str(own))
    own.with_name("beside_it.py").touch()
    with pytest.raises(ValueError, match="'beside_it'; files beside it can't be imported: install"):
        load_policy(str(own))


def test_an_entry_point_is_a_policy(monkeypatch):
    points = [EntryPoint("mine", "policies.edf:Edf", "laxity.policies")]
    points.append(EntryPoint("broken", "policies.edf:Nothing", "laxity.policies"))
    monkeypatch.setattr(policy_loading, "entry_points", lambda group: points)
    assert type(load_policy("mine")) is Edf
    with pytest.raises(ValueError, match=r"'broken': entry point 'policies.edf:Nothing' .* Attr"):
        load_policy("broken")
    with pytest.raises(ValueError, match=r"'mien' is not known \(did you mean 'mine'\?\)"):
        load_policy("mien")


def offering(name: str, value: str) -> Distribution:
    class Offering(Distribution):
        def read_text(self, filename: str) -> str | None:
            files = {
                "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
                "entry_points.txt": f"[laxity.policies]\nmine = {value}\n",
            }
            return files.get(filename)

        def locate_file(self, path: Any) -> Any:
            return path

    return Offering()


def test_a_name_that_two_offer_means_neither(monkeypatch):
    def offer(*distributions: Distribution) -> None:
        points = [point for each in distributions for point in each.entry_points]
        monkeypatch.setattr(policy_loading, "entry_points", lambda group: points)

    offer(offering("red", "policies.edf:Edf"), offering("blue", "policies.fcfs:Fcfs"))
    told = (
        r"'mine' is offered by blue \(policies.fcfs:Fcfs\) and red \(policies.edf:Edf\): "
        r"uninstall all but one, or name it as 'policies.edf:Edf'"
    )
    with pytest.raises(ValueError, match=told):
        load_policy("mine")
    offer(offering("red", "policies.edf:Edf"), offering("blue", "policies.edf:Edf"))
    assert type(load_policy("mine")) is Edf, "whichever is meant, it is that one"
    offer(offering("red", "policies.edf:Nothing"))
    with pytest.raises(ValueError, match=r"'policies.edf:Nothing' of red: Attribute"):
        load_policy("mine")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("policies.edf", "^policy 'mine' is the module policies.edf; name a class in it, as poli"),
        ("policies.edf:Iterator", "^policy 'mine': class 'Iterator' has no method 'decide'"),
        ("policies:DEFAULT", "^policy 'mine' is 'goodput', which makes no policy"),
        ("builtins:dict", "^policy 'mine': class 'dict' has no method 'decide'"),
        ("gc:collect", "^policy 'mine': its factory returned .*, which has no method 'decide'"),
    ],
)
def test_an_entry_point_to_something_else_is_told_once(monkeypatch, value, told):
    points = [EntryPoint("mine", value, "laxity.policies")]
    monkeypatch.setattr(policy_loading, "entry_points", lambda group: points)
    with pytest.raises(ValueError, match=told) as raised:
        load_policy("mine")
    assert str(raised.value).count("'mine'") == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("goodptu", r"not known \(did you mean 'goodput'\?\); there are .*or name one as 'module"),
        ("{folder}/own_polcy.py", r"no file .*own_polcy.py \(did you mean 'own_policy.py'\?\)"),
        ("{folder}/own_policy.py:Onw", r"own_policy.py has no 'Onw' \(did you mean 'Own'\?\)"),
        ("{folder}/own_policy.py:Options", "class 'Options' has no method 'decide'"),
        ("{folder}/empty.py", "should have one class with a method 'decide'.* there: none"),
        ("{folder}/misspelt.py", "should have one class with a method 'decide'.* there: none"),
        ("{folder}/misspelt.py:Mine", "class 'Mine' has no method 'decide'"),
        ("{folder}/wrong.py", "wrong.py raised SyntaxError"),
        ("no_such_module:Own", "module 'no_such_module': ModuleNotFoundError"),
        ("policies:DEFAULT", "is 'goodput', which makes no policy"),
        ("{folder}/program.py", "program.py raised SystemExit: 0"),
        ("~nobody-of-that-name/own.py", "there is no file"),
        (f"{'long' * 99}.py", r"can't be read \(File name too long\)"),
        ("{folder}/made.py:one", "is one Edf for all schedulers; name its class"),
        ("{folder}/made.py:make", "its factory returned None, which has no .*a `return` missing"),
    ],
)
def test_what_is_no_policy_is_told(own, name, told):
    (own.parent / "empty.py").touch()
    misspelt = "class Mine(Policy):\n    def decides(self, view): return ()\n"
    (own.parent / "misspelt.py").write_text(f"from scheduler.core.policy import Policy\n{misspelt}")
    (own.parent / "wrong.py").write_text("class")
    (own.parent / "program.py").write_text("import sys; sys.exit(0)")
    made = "from policies.edf import Edf\none = Edf()\ndef make(): Edf()\n"
    (own.parent / "made.py").write_text(made)
    with pytest.raises(ValueError, match=told):
        load_policy(name.format(folder=own.parent))


def test_an_option_may_have_any_name(own):
    names = own.parent / "names.py"
    names.write_text(
        "class Names:\n"
        "    def __init__(self, name='', event=0, policy=0): self.given = name, event, policy\n"
        "    def decide(self, view): return ()\n"
    )
    options: dict[str, Any] = {"name": "n", "event": 2, "policy": 3}
    made: Any = load_policy(str(names), **options)
    assert made.given == ("n", 2, 3)

    async def swapped() -> tuple[str, Any]:
        driver = Driver()
        driver.swap_policy(str(names), options)
        return driver.policy

    assert asyncio.run(swapped()) == (str(names), options)
    with pytest.raises(ValueError, match="policy 'edf' has no option 'name'"):
        make_policy("edf", name="x")


def test_an_option_that_is_needed_is_told_with_how_to_give_it(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from policies.parts.wrapping import Wrapper\n"
        "class Mine(Wrapper):\n"
        "    def __init__(self, inner, *, depth, **more): super().__init__(inner)\n"
        "    def decide(self, view): return self.inner.decide(view)\n"
    )
    with pytest.raises(ValueError, match=r"needs its option inner; .*mine\.py\?inner=edf'"):
        load_policy(str(file))
    with pytest.raises(ValueError, match=r"needs its option depth; .*mine\.py\?depth=\.\.\.'"):
        load_policy(str(file), inner="edf")
    assert load_policy(str(file), inner="edf", depth=1)
    file.write_text(file.read_text().replace(", **more", ""))
    misspelt = r"has no option 'dept' \(did you mean 'depth'\?\); it has inner, depth"
    with pytest.raises(ValueError, match=misspelt):
        load_policy(str(file), inner="edf", dept=1)


def test_an_option_that_is_not_one_is_told(own):
    with pytest.raises(ValueError, match=r"has no option 'width'.*; it has quantile, depth"):
        load_policy(str(own), width=3)
    with pytest.raises(ValueError, match=r"quantile must be between 0 and 1"):
        load_policy(str(own), quantile=3)


PLAIN = "class Plain:\n    def decide(self, view): return ()\n"


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("edf", {"quantile": "0.9"}, "; quantile is a number, as 0.95$"),
        ("goodput", {"quantile": "0.9"}, "; quantile is a number$"),
        ("hedge", {"early_ms": "2", "inner": "edf"}, "; early_ms is a number, as 1.0$"),
        ("hedge", {"quantile": 95, "inner": "{plain}"}, "quantile must be between 0 and 1, not 95"),
        ("power_of_two", {"seed": "7"}, "seed must be a whole number, not '7'"),
        ("power_of_two", {"seed": 0.5}, "seed must be a whole number, not 0.5"),
        ("spill", {"budget_per_hour": float("nan")}, "budget_per_hour must be 0 or more, not nan"),
    ],
)
def test_an_option_with_which_it_could_not_decide_is_told(tmp_path, name, options, told):
    plain = tmp_path / "plain.py"
    plain.write_text(PLAIN)
    given = {k: str(plain) if v == "{plain}" else v for k, v in options.items()}
    with pytest.raises(ValueError, match=told):
        load_policy(name, **given)


def test_what_a_policy_raises_while_it_is_made_is_told(own):
    failing = own.parent / "failing.py"
    failing.write_text(
        "class Failing:\n"
        "    def __init__(self, depth=1):\n"
        "        if depth == 0: raise SystemExit(0)\n"
        "        if depth < 0: raise GeneratorExit('deep')\n"
        "        {}['depth']\n"
        "    def decide(self, view): return ()\n"
    )
    with pytest.raises(ValueError, match=r"with depth=3 it raised KeyError: 'depth'"):
        load_policy(str(failing), depth=3)
    with pytest.raises(ValueError, match=r"with depth=0 it raised SystemExit: 0"):
        load_policy(str(failing), depth=0)
    with pytest.raises(ValueError, match=r"with depth=-1 it raised GeneratorExit: deep"):
        load_policy(str(failing), depth=-1)


def test_the_example_swaps_in_and_out_without_losing_a_request():
    watch = Watch(Goodput)
    watch.handle(TargetUp(target(slots=1)), 0)
    submit(watch, *(request(i, 20 + i) for i in range(1, 7)))
    watch.swap(lambda: load_policy(str(EXAMPLE)), 1 * MS)
    submit(watch, request(7, 60), request(8, 2), at_ms=1)
    assert watch.finished[8].outcome is Outcome.INFEASIBLE
    (sent,) = of(Dispatch, watch.handle(BatchDone(1), 4 * MS))
    assert sent.reason == "shortest job first"
    watch.swap(Edf, 5 * MS)
    watch.close()
    assert len(watch.finished) == 8
