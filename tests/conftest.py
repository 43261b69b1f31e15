"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import settings

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
"""Whose coverage counts: the pure rooms' own tests. What only searches for a broken law, in these
folders and elsewhere, would take up to five times as long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nothing else is traced, and side by side work and waiting are mixed."""
    for item in items:
        if not item.nodeid.startswith(COVERED):
            item.add_marker("no_cover")
    if "PYTEST_XDIST_WORKER" in os.environ:
        items[:] = _mixed(items)


def _mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files that start agents, which mostly wait for them, spread among the others.

    The others go from many tests to few; the last of all is one of those, not a slow one.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = [tests for tests in files.values() if tests[0].get_closest_marker("e2e")]
    rest = sorted([tests for tests in files.values() if tests not in slow], key=len)[::-1]
    places = [((number + 0.5) / len(rest), tests) for number, tests in enumerate(rest)]
    places += [(0.9 * number / len(slow), tests) for number, tests in enumerate(slow)]
    return [test for _, tests in sorted(places, key=itemgetter(0)) for test in tests]


@pytest.fixture(scope="session")
def new_site() -> Callable[[int], Site]:
    """Makes so many hosts; who asks for it is skipped where there can be none."""
    if reason := why_no_hosts():
        pytest.skip(reason)
    return Site


@pytest.fixture
def laxity(monkeypatch, capsys):
    """Runs a command line; its exit status, stdout and stderr."""
    from scheduler import cli  # not for all tests: it imports all commands

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["laxity", *arguments])
        monkeypatch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return int(exit_.value.code or 0), out, err

    return run
