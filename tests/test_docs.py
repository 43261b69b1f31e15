"""What the documents say of one another, and the files that they tell to write."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from replay.readers import FORMATS
from scheduler.config import load_config
from workers.model_yaml import parse_model_file

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
        ROOT / "policies" / "README.md",
    ]
)
BOX = (ROOT / "docs" / "box.md").read_text(encoding="utf-8")


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


def test_every_document_is_linked_from_the_readme_or_from_one_that_is():
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        document = ahead.pop()
        if document in seen or document.suffix != ".md":
            continue
        seen.add(document)
        links = re.findall(r"\]\(([^)\s#:]+)[)#]", document.read_text(encoding="utf-8"))
        ahead += [(document.parent / link).resolve() for link in links]
    named = set((ROOT / "docs").glob("*.md"))
    assert named - seen == set()


def test_the_files_that_a_box_is_told_to_have_are_right(tmp_path):
    model, config = re.findall(r"```yaml\n(.*?)```", BOX, re.S)
    assert list(parse_model_file(model).variants) == ["full", "small"]
    path = tmp_path / "edge.yaml"
    path.write_text(config)
    assert load_config(path).models == tmp_path / "models"


def test_each_format_of_a_trace_is_described():
    replay = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
    table = replay.partition("| format of a trace |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)`", table, re.M) == list(FORMATS)


def test_a_box_that_cannot_start_is_started_again_without_end():
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(ROOT / "deploy" / "edge_agent.service")
    assert unit["Service"]["Restart"] in ("on-failure", "always")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
