"""`laxity doctor`: what it notices, and what it says is right."""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest

from scheduler import cli
from scheduler.config import CacheConfig, Config
from scheduler.doctor import (
    Surroundings,
    check_cache,
    check_onnxruntime,
    check_packages,
    examine,
)
from tests.redis_server import RedisServer, needs_redis


@pytest.fixture
def install(tmp_path: Path):
    """Distributions with nothing but a name and top-level packages; what there is then."""

    def add(*wanted: tuple[str, str]) -> Surroundings:
        for name, packages in wanted:
            folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            if packages == "onnxruntime":  # as its wheels do
                (folder / "RECORD").write_text("onnxruntime/__init__.py,,\n")
                (tmp_path / "onnxruntime").mkdir(exist_ok=True)
                (tmp_path / "onnxruntime/__init__.py").touch()
            else:
                (folder / "top_level.txt").write_text(packages)
        found: list[Distribution] = list(distributions(path=[str(tmp_path)]))
        return Surroundings(Config(), tuple(found))

    return add


def test_this_environment_has_no_errors() -> None:
    assert [each.message for each in examine(Config()) if each.level == "error"] == []


def test_two_builds_of_onnxruntime_are_one_too_many(install) -> None:
    (one,) = check_onnxruntime(install(("onnxruntime", "onnxruntime")))
    assert (one.level, one.message) == ("good", "onnxruntime 1.0")
    (two,) = check_onnxruntime(install(("onnxruntime-gpu", "onnxruntime")))
    assert two.level == "error"
    assert "onnxruntime 1.0 and onnxruntime-gpu 1.0" in two.message
    assert "laxity[gpu]" in two.remedy


def test_another_owner_of_our_packages_is_named(install) -> None:
    around = install(("laxity", "scheduler workers"), ("old-thing", "old replay"), ("fine", "fine"))
    (finding,) = check_packages(around)
    assert (finding.level, finding.message) == (
        "error",
        "package 'replay' belongs to old-thing too",
    )


def test_a_shadowed_package_is_named(install, tmp_path, monkeypatch) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "policies")
    found = [each for each in check_packages(install()) if each.level == "error"]
    assert [str(tmp_path / "policies") in each.message for each in found] == [True]


def cached(**settings: object) -> Surroundings:
    return Surroundings(Config(cache=CacheConfig(**settings)), ())


def test_without_redis_there_is_nothing_to_look_at() -> None:
    assert [each.level for each in check_cache(Surroundings(Config(), ()))] == ["good"]
    assert [each.level for each in check_cache(cached())] == ["good"]


@needs_redis
def test_redis_is_asked_for_its_bounds() -> None:
    server = RedisServer()
    try:
        around = cached(url=server.url.replace("//", "//:secret@"))
        with server.client() as client:
            client.config_set("requirepass", "secret")
        good, unbounded, refusing = check_cache(around)
        assert (good.level, unbounded.level, refusing.level) == ("good", "warning", "warning")
        assert "maxmemory" in unbounded.remedy
        assert "allkeys-lru" in refusing.remedy
        assert "secret" not in good.message
        with server.client(password="secret") as client:
            client.config_set("maxmemory", "100mb")
            client.config_set("maxmemory-policy", "allkeys-lfu")
        assert [each.level for each in check_cache(around)] == ["good", "good"]
        (refused,) = check_cache(cached(url=server.url))
        assert refused.level == "error"
    finally:
        server.close()
    (away,) = check_cache(around)
    assert (away.level, "serves without it" in away.remedy) == ("error", True)


def test_the_command_says_it_and_its_status_tells(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text("cache: {url: 'redis://127.0.0.1:1/0'}\n")

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["laxity", "doctor", *words])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return int(exit_.value.code or 0), capsys.readouterr().out

    assert run()[0] == 0
    status, told = run("--config", str(file), "--json")
    assert status == 1
    assert [each["check"] for each in json.loads(told) if each["level"] == "error"] == ["cache"]
    status, told = run("--config", str(file))
    assert (status, "127.0.0.1:1" in told) == (1, True)


def test_lines_that_go_on_keep_their_indent(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text('cache: {url: "redis://127.0.0.1:1"}\n')
    monkeypatch.setattr(sys, "argv", ["laxity", "doctor", "--config", str(file)])
    monkeypatch.setenv("COLUMNS", "50")
    with pytest.raises(SystemExit):
        cli.main()
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    message = next(n for n, line in enumerate(lines) if line.startswith("error"))
    indent = lines[message].index("redis://")
    assert len(lines) > message + 2
    assert all(line[:indent].isspace() for line in lines[message + 1 :])
    assert max(map(len, lines)) <= 50
