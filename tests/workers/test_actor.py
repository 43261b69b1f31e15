"""What a worker says of a repository that changes, and in which order."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler.core.offers import Offer
from scheduler.wire import Header
from workers import actor
from workers.actor import WorkerProcess
from workers.runtimes.base import DeviceSpec


class Link:
    """Notes what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, _key: str, header: Header) -> None:
        self.said.append(header["t"])

    def unsay(self, _keys: Iterable[str], header: Header) -> None:
        self.said.append(header["t"])

    def serve_forever(self) -> None:
        raise AssertionError("in a test")

    def between_runs(self) -> nullcontext[None]:
        return nullcontext()


class Host:
    """Replaces a model, and its variant by another one."""

    repository = SimpleNamespace(problems=(), models={})
    problems = ()
    tell_end: Callable[[str], None]

    def prepare_changes(self, _progress: Any) -> Iterator[Any]:
        yield None

    def adopt(self, _ready: Any) -> tuple[list[Offer], list[tuple[str, str]]]:
        return [Offer("m", "2", "r", {1: (2_000_000,)})], [("m", "1")]


def test_why_it_ends_is_told_before_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is lost is noticed by the host, which knows nothing of the scheduler."""
    link, host = Link(), Host()
    limits: list[bool] = []
    monkeypatch.setattr(actor, "DeviceHost", lambda *_: host)
    monkeypatch.setattr(actor, "LinkServer", lambda *_, **__: link)
    monkeypatch.setattr(WorkerProcess, "_start", lambda *_: None)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda _, exit: limits.append(exit))
    WorkerProcess(DeviceSpec("gpu:0", "gpu"), Path(), Path(), Path("link"), 1, cast(Any, None))

    host.tell_end("its GPU is lost")

    assert link.said[-1] == "ending"
    assert limits == [True]  # even if the scheduler doesn't take it


def test_the_new_digest_of_a_replaced_model_is_told_before_who_serves_it_now() -> None:
    """The cache goes by it, and must not have an old answer for who sees the new variant alone."""
    worker, link = WorkerProcess.__new__(WorkerProcess), Link()
    worker._link, worker._host = cast(Any, link), cast(Any, Host())
    worker._prepare_changes()
    assert link.said[:3] == ["catalog", "offer", "withdrawn"]
    assert link.said.index("catalog", 1) < link.said.index("progress")
