"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.fake_box import FakeBox
from tests.hosts import Site, why_no_hosts
from workers.opt_out import opt_out

opt_out()

# A slow or busy machine is no reason for a test to fail.
settings.register_profile("laxity", deadline=None)
settings.load_profile("laxity")

# A shell lets what it runs in the background ignore Ctrl-C, and `nohup` a terminal that closes; so
# would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

COVERED = ("tests/core/", "tests/policies/")
"""Whose coverage counts: the pure rooms' own tests. Those here that search for a broken law or play
thousands of requests are marked `no_cover`: they would take up to five times as long."""


LONG = ("tests/e2e/", "tests/test_compiled.py")
"""Whose tests are few and long: they start agents, or compile."""

TOGETHER = "tests/e2e/shared_agent"
"""The folder whose files go to one worker, because they share what is dear to start."""


def pytest_configure(config: pytest.Config) -> None:
    """pytest-cov 7 starts coverage twice in a worker; `no_cover` stops only what is left then."""
    measured = config.pluginmanager.getplugin("_cov")
    if hasattr(config, "workerinput") and measured is not None and measured.cov_controller:
        measured.cov_controller.pause()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Nothing else is traced, and where workers share files, long ones come among the others."""
    for item in items:
        if not item.nodeid.startswith(COVERED):
            item.add_marker("no_cover")
    if hasattr(config, "workerinput"):
        items[:] = _spread(items)


def _shared(test_id: str) -> str:
    """The part of a test's id that it has in common with all that go to the same worker."""
    return TOGETHER if test_id.startswith(f"{TOGETHER}/") else test_id.split("::", 1)[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, but for files that go together."""
    if config.getoption("dist") != "loadfile":
        return None
    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = _shared
    return scheduling


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files with long tests evenly among the others, and the largest of each kind first.

    The last of the others come after them: most are short, so that all workers end together.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(_shared(item.nodeid), []).append(item)
    placed: list[tuple[float, list[pytest.Item]]] = []
    for is_long in (True, False):
        kind = [f for f in files.values() if f[0].nodeid.startswith(LONG) is is_long]
        kind.sort(key=len, reverse=True)
        part = 0.8 if is_long else 1.0
        placed += [(part * index / len(kind), file) for index, file in enumerate(kind)]
    return [item for _, file in sorted(placed, key=lambda each: each[0]) for item in file]


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_kept_of_other_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["LAXITY_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def new_site() -> Callable[[int], Site]:
    """Makes so many hosts; who asks for it is skipped where there can be none."""
    if reason := why_no_hosts():
        pytest.skip(reason)
    return Site


@pytest.fixture
def box(tmp_path: Path) -> Iterator[FakeBox]:
    """A fake one; where the box of a file or folder is another, that has a fixture of its own."""
    box = FakeBox(tmp_path / "s").start()
    yield box
    box.close()


@pytest.fixture
def laxity(monkeypatch, capsys):
    """Runs a command line; its exit status, stdout and stderr."""
    from scheduler.cli.main import main  # not for all tests: it imports all commands

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["laxity", *arguments])
        monkeypatch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run
