"""The page about the Python client has every name, argument, field and error, and it runs."""

from __future__ import annotations

import re
from dataclasses import fields
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scheduler
from scheduler import AsyncClient, Client, Outcome, Result, TaskStatus, Timing, wire
from tests.fake_box import FakeBox, Peer

PAGE = (Path(__file__).parents[2] / "docs" / "python-client.md").read_text(encoding="utf-8")
CALLS = ("submit", "infer", "map")
ASKING = (*CALLS, "models", "status", "statistics", "tasks")
BASES = (scheduler.LaxityError, scheduler.RequestEnded)


def row(name: str, of: str) -> list[str]:
    """The cells of the table row about a name, in the section under a heading."""
    part = PAGE.partition(f"\n## {of}\n")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"^\| `{name}` \|(.*)\|$", part, re.M)
    return [cell.strip() for cell in found.split("|")]


@pytest.mark.parametrize("name", scheduler.__all__)
def test_each_public_name_is_told(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE)


def test_each_method_is_told() -> None:
    public = [name for name in vars(Client) if not name.startswith("_") and name != "carry_out"]
    assert [name for name in public if f"`{name}(" not in PAGE] == []
    assert {*public} - {*vars(AsyncClient)} == {"cancel"}  # an asyncio future does that alone


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("method", ASKING)
def test_each_argument_is_told_with_its_default(client: Any, method: str) -> None:
    for each in signature(getattr(client, method)).parameters.values():
        if each.name == "self" or each.kind is Parameter.VAR_KEYWORD:
            continue
        of, default, *_ = row(each.name, "Requests")
        assert f"`{method}`" in of or (of == "all" and method in CALLS)
        assert default == ("" if each.default is Parameter.empty else f"`{each.default}`")


def test_each_argument_of_a_connection_is_told_with_its_default() -> None:
    for name, each in list(signature(Client).parameters.items()):
        assert row(name, "Connect")[0] == f"`{each.default}`"


def test_each_field_is_told() -> None:
    told = PAGE.partition("\n## Results\n")[2].partition("\n## ")[0]
    names = [each.name for kind in (Result, TaskStatus) for each in fields(kind)]
    assert [name for name in (*names, *Timing._fields) if f"`{name}`" not in told] == []


def test_each_error_is_told_with_its_code() -> None:
    assert row("CancelledError", "Errors")[0] == f"`{Outcome.CANCELLED}`"
    named = [getattr(scheduler, name) for name in scheduler.__all__]
    for error in named:
        if isinstance(error, type) and issubclass(error, scheduler.LaxityError):
            assert error in BASES or row(error.__name__, "Errors")[0] == f"`{error.code}`"


def answer(peer: Peer, header: wire.Header) -> None:
    header["tensors"] = {"scores": np.zeros(10, np.float32)}
    peer.answer(header)


def keep(peer: Peer, header: wire.Header) -> None:
    if header["t"] == "task_result":
        answer(peer, header)
        return
    texts = dict.fromkeys(("variant", "outcome", "ended_unix_ms"))
    numbers = dict.fromkeys(("attempts", "priority", "left_ms", "submitted_unix_ms"), 1)
    kept = {"task": header["task"], "new": True, "model": "digits", "state": "waiting"}
    value = {**kept, **texts, **numbers, "reason": ""}
    peer.send({"t": "reply", "id": header["id"], "value": value})


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", PAGE, re.S))
def test_each_example_runs(box: FakeBox, monkeypatch, capsys, example: str) -> None:
    monkeypatch.setenv("LAXITY_URL", box.url)
    box.on_infer, box.on_task = answer, keep
    exec(compile(example, "python-client.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out
