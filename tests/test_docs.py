"""What the documents say of one another, and the files that they tell to write."""

from __future__ import annotations

import ast
import configparser
import re
from dataclasses import fields
from inspect import getsource, signature
from pathlib import Path
from textwrap import dedent

import pytest
from hatchling.builders.sdist import SdistBuilder

from policies import POLICIES
from replay.fleet.file import DeviceFile, FleetFile, LinkFile, ModelProfile
from replay.readers import FORMATS
from replay.workloads.mix import MixEntry
from replay.workloads.processes import PROCESSES
from scheduler.address import default_socket
from scheduler.config.box import default_state_dir, load_config
from scheduler.daemon import catalog, energy, status
from scheduler.daemon.actor import SchedulerProcess
from scheduler.daemon.cache.central import CentralCopy
from scheduler.daemon.cache.counts import Counts
from scheduler.daemon.cache.front import ResultCache
from scheduler.daemon.cache.lookups import Lookups
from scheduler.daemon.cache.redis_link import RedisLink
from scheduler.daemon.cloud.link import CloudLink
from scheduler.daemon.cloud.till import Till
from scheduler.daemon.driver import Driver
from scheduler.daemon.journal import Journal
from scheduler.daemon.link import LinkedTarget
from scheduler.daemon.neighbours.members import Members
from scheduler.daemon.neighbours.neighbours import Neighbours
from scheduler.daemon.neighbours.peer_knowledge import PeerKnowledge
from scheduler.daemon.neighbours.peer_link import PeerLink
from scheduler.daemon.tracing.traces import Traces
from scheduler.daemon.ways import purse, shrinking, sizes
from scheduler.daemon.ways.breaker import Breaker
from scheduler.daemon.ways.meter import WayMeter
from scheduler.daemon.worker_link import WorkerLink
from scheduler.durable.desk import TaskDesk
from scheduler.ingress.admission import Admission
from workers.model_yaml import parse_model_file
from workers.runtimes.emulated import EmulatedOptions

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        ROOT / "policies" / "README.md",
    ]
)
REPLAY = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
BOX = (ROOT / "docs" / "box.md").read_text(encoding="utf-8")


SAYING = (
    catalog.Catalog._worked_out,
    catalog.Catalog._describe,
    catalog._describe_spec,
    catalog._describe_offer,
    Admission.describe_models,
    SchedulerProcess._certificate,
    SchedulerProcess._describe,
    status.status_of,
    status.about,
    Driver.status,
    Journal.status,
    ResultCache.status,
    Counts.describe,
    Lookups.status,
    RedisLink.status,
    CentralCopy.status,
    TaskDesk.status,
    Traces.describe,
    Neighbours.describe,
    Members.describe,
    LinkedTarget.describe,
    WorkerLink.describe,
    CloudLink.describe,
    PeerLink.describe,
    PeerKnowledge.describe,
    Breaker.describe,
    WayMeter.describe,
    Till.describe,
    energy.EnergyAccount.describe,
    purse.Purse.describe,
    shrinking.Shrinking.describe,
    sizes.RefusedSizes.describe,
)
"""What makes the answers to `models` and `status`."""


def anchors(document: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_source_distribution_has_the_documents_and_what_they_link_to():
    links = {
        (document.parent / link).resolve()
        for document in DOCUMENTS
        for link in re.findall(r"\]\(([^)\s#:]+)[)#]", document.read_text(encoding="utf-8"))
    }
    needed = {*DOCUMENTS, *(link for link in links if link.is_file())}
    needed.discard(ROOT / "README.md")  # packed in any case, as the project's description
    packed = {Path(each.path) for each in SdistBuilder(str(ROOT)).recurse_included_files()}
    assert needed <= packed, needed - packed


def test_every_document_is_linked_from_the_readme_or_from_one_that_is():
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        document = ahead.pop()
        if document in seen or document.suffix != ".md":
            continue
        seen.add(document)
        links = re.findall(r"\]\(([^)\s#:]+)[)#]", document.read_text(encoding="utf-8"))
        ahead += [(document.parent / link).resolve() for link in links]
    decisions = set((ROOT / "docs" / "decisions").glob("*.md"))  # README links to their folder
    assert {*DOCUMENTS} - decisions - seen == set()


def test_the_files_that_a_box_is_told_to_have_are_right(tmp_path):
    model, padded, config = re.findall(r"```yaml\n(.*?)```", BOX, re.S)
    assert list(parse_model_file(model).variants) == ["full", "small"]
    assert list(parse_model_file(padded).inputs) == ["input_ids", "attention_mask"]
    path = tmp_path / "edge.yaml"
    path.write_text(config)
    assert load_config(path).models == tmp_path / "models"


def test_each_extra_of_a_user_is_told():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = \[", section, re.M)) - {"dev", "bench"}
    told = BOX.partition("\n## Install\n")[2].partition("\n## ")[0]
    assert {extra for extra in extras if f"`{extra}`" not in told} == set()


def test_each_variable_of_the_environment_is_told():
    rooms = ("scheduler", "policies", "workers", "edge_agent", "replay")
    files = [each for room in rooms for each in (ROOT / room).rglob("*.py")]
    texts = [file.read_text(encoding="utf-8") for file in (*files, ROOT / "hatch_build.py")]
    used = {name for text in texts for name in re.findall(r'"(LAXITY_[A-Z_]+)"', text)}
    section = BOX.partition("\n## Environment variables\n")[2].partition("\n## ")[0]
    told = set(re.findall(r"`(LAXITY_[A-Z]+(?:_[A-Z]+)*)`", section))
    assert told == {name for name in used if not name.startswith("LAXITY_AGENT_")}


def test_each_room_is_listed_with_what_it_may_import():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| room | owns | may import |")[2].partition("\n\n")[0]
    folders = [each.parent for each in (ROOT / "scheduler").glob("*/__init__.py")]
    others = ("policies", "workers", "edge_agent", "replay", "scheduler")
    rooms = {*others, *(f"scheduler/{folder.name}" for folder in folders)}
    assert set(re.findall(r"^\| `([\w/]+)`", table, re.M)) == rooms


@pytest.mark.parametrize("function", SAYING, ids=lambda function: function.__qualname__)
def test_each_field_that_a_box_says_of_itself_is_told(function):
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    told = page.partition("## What a box says of itself")[2].partition("\n## ")[0]
    tree = ast.parse(dedent(getsource(function)))
    keys = [key for each in ast.walk(tree) if isinstance(each, ast.Dict) for key in each.keys]
    names = {str(key.value) for key in keys if isinstance(key, ast.Constant)}
    if function is Counts.describe:
        names = {each.name for each in fields(Counts)}
    assert {name for name in names if f"`{name}`" not in told} == set()


def test_each_format_of_a_trace_is_described():
    table = REPLAY.partition("| format of a trace |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)`", table, re.M) == list(FORMATS)


@pytest.mark.parametrize("name", PROCESSES)
def test_each_process_is_described_with_its_keys(name):
    (row,) = re.findall(rf"^\| .*`{name}`.*$", REPLAY.partition("| process |")[2], re.M)
    keys = signature(PROCESSES[name]).parameters
    assert [key for key in keys if f"`{key}`" not in row] == []


@pytest.mark.parametrize("file", [MixEntry, FleetFile, DeviceFile, LinkFile, ModelProfile])
def test_each_key_of_a_workload_and_of_a_fleet_is_told(file):
    keys = [each.name for each in fields(file)] if file is MixEntry else file.model_fields
    # A fleet's own name is that of its file.
    missing = [key for key in keys if not re.search(rf"\b{key}\b", REPLAY) and key != "name"]
    assert missing == []


def test_each_option_of_an_emulated_device_is_told():
    told = REPLAY.partition("## A cloud that isn't there")[2].partition("\n## ")[0]
    assert [key for key in EmulatedOptions.model_fields if not re.search(rf"\b{key}\b", told)] == []


@pytest.mark.parametrize("name", POLICIES)
def test_each_option_of_a_policy_is_told_with_its_default(name):
    text = (ROOT / "policies" / "README.md").read_text(encoding="utf-8")
    for option in signature(POLICIES[name]).parameters.values():
        (row,) = re.findall(rf"^\| `{option.name}` \|.*$", text, re.M)
        _, _, of, _, default, _ = row.split("|")
        assert "all" in of or f"`{name}`" in of
        if option.default is not None:
            usual, _, others = default.partition(";")
            own = re.search(rf"`{name}` (\S+?)(,|$)", others.strip())
            assert float(own[1] if own else usual) == option.default


def test_each_part_of_the_policies_is_listed():
    text = (ROOT / "policies" / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+\.py)` \|", text, re.M)
    parts = (ROOT / "policies" / "parts").glob("[!_]*.py")
    assert sorted(listed) == sorted(part.name for part in parts)


@pytest.mark.parametrize("load", ["0.5", "1", "1.5", "2"])
@pytest.mark.parametrize("policy", ["goodput", "edf", "fcfs"])
def test_the_picture_shows_what_the_table_says(policy, load):
    picture = (ROOT / "docs" / "pictures" / "on-time.svg").read_text(encoding="utf-8")
    table = (ROOT / "docs" / "policies-compared.md").read_text(encoding="utf-8")
    (shown,) = re.findall(rf"{policy} at load {load}: ([\d.]+) ±", picture)
    (columns,) = re.findall(r"^\| scenario \|.*$", table, re.M)
    (row,) = re.findall(rf"^\| load-{float(load):.1f}".replace(".", "_") + r" \|.*$", table, re.M)
    cells = dict(zip(columns.split("|"), row.replace("*", "").split("|"), strict=True))
    assert float(shown) == pytest.approx(float(cells[f" `{policy}` "]), abs=0.11)


@pytest.fixture
def unit() -> configparser.ConfigParser:
    """The systemd unit."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy" / "edge_agent.service")
    return unit


def test_a_box_that_cannot_start_is_started_again_without_end_unless_its_file_is_wrong(unit):
    assert unit["Service"]["Restart"] in ("on-failure", "always")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert unit["Service"]["RestartPreventExitStatus"] == "2"


def test_the_unit_uses_the_folders_that_systemd_makes_whoever_runs_it(unit, monkeypatch):
    service = unit["Service"]
    folders = {"%t": "/run", "%S": "/var/lib"}
    for word in service["Environment"].split():
        name, _, value = word.partition("=")
        for specifier, folder in folders.items():
            value = value.replace(specifier, folder)
        monkeypatch.setenv(name, value)
    assert str(default_socket()) == f"unix:///run/{service['RuntimeDirectory']}/laxity.sock"
    assert str(default_state_dir()) == f"/var/lib/{service['StateDirectory']}"


def test_a_process_that_is_ended_for_want_of_memory_takes_no_other_of_the_box_with_it(unit):
    assert unit["Service"]["OOMPolicy"] == "continue"
