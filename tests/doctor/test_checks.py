"""`laxity doctor`: what it notices, and what it says is right."""

from __future__ import annotations

import json
import os
import shutil
import sys
from datetime import datetime, timedelta, timezone
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme
from redis.exceptions import AuthenticationError

from scheduler.cli.main import main
from scheduler.config.box import Config
from scheduler.config.cache import CacheConfig, why_away
from scheduler.config.policy import PolicyConfig
from scheduler.doctor.checks import (
    check_cache,
    check_files,
    check_folders,
    check_onnxruntime,
    check_packages,
    examine,
)
from scheduler.doctor.findings import Surroundings
from scheduler.doctor.policies import check_policies
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


def test_this_environment_has_no_errors(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # away from boxes of others
    assert [each.message for each in examine(Config()) if each.level == "error"] == []


def test_a_policy_that_cannot_be_made_is_an_error() -> None:
    (good,) = check_policies(Surroundings(Config(), ()))
    assert (good.level, good.message) == ("good", "goodput can be loaded")
    config = Config(policy=PolicyConfig(name="goodptu"))
    (found,) = check_policies(Surroundings(config, ()))
    assert found.level == "error"
    assert "(did you mean 'goodput'?)" in found.message


def test_policies_whose_names_mean_others_are_named(install, tmp_path: Path) -> None:
    install(("red", "red"), ("blue", "blue"), ("grey", "grey"))
    for name, offered in (
        ("red", "edf = red:Edf\nmine = red:Mine\nours = red:Ours"),
        ("blue", "mine = blue:Mine\nours = red:Ours"),
        ("grey", "own = grey:Own"),
    ):
        text = f"[laxity.policies]\n{offered}\n"
        (tmp_path / f"{name}-1.0.dist-info/entry_points.txt").write_text(text)
    found = [each for each in check_policies(install()) if each.level != "good"]
    assert [(each.level, each.message, each.remedy.partition(",")[0]) for each in found] == [
        (
            "warning",
            "red offers a policy 'edf', but that name means laxity's own",
            "name it as 'red:Edf'",
        ),
        (
            "warning",
            "'mine' is offered by blue and red, so it is not clear which is meant",
            "uninstall all but one",
        ),
    ]


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
        "package 'replay' also belongs to old-thing",
    )


def test_a_shadowed_package_is_named(install, tmp_path, monkeypatch) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "policies")
    found = [each for each in check_packages(install()) if each.level == "error"]
    assert [str(tmp_path / "policies") in each.message for each in found] == [True]


def around(folder: Path, **settings: object) -> Surroundings:
    given = {"state_dir": "state", **settings}
    return Surroundings(Config.model_validate(given, context={"base": folder}), ())


def test_folders_that_do_not_exist_yet_are_made_in_one_that_can_be_written(tmp_path) -> None:
    (good,) = check_folders(around(tmp_path))
    assert good.level == "good"
    assert good.message.startswith(f"{tmp_path / 'state'}: ")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_named_with_its_key(tmp_path) -> None:
    (tmp_path / "file").touch()
    found = check_folders(around(tmp_path, durable={"dir": "file/tasks"}, state_dir="state"))
    error, good = sorted(found, key=lambda finding: finding.level)
    assert (error.level, good.level) == ("error", "good")
    assert f"{tmp_path / 'file/tasks'} (durable.dir) can't be written" in error.message


def test_what_another_user_left_in_a_folder_is_named(tmp_path, monkeypatch) -> None:
    compiled = tmp_path / "state" / "compiled"
    for name in ("compiled", "profiles", "tasks"):
        (tmp_path / "state" / name).mkdir(parents=True)
    may = os.access  # as root, who runs some tests, may everything
    monkeypatch.setattr(os, "access", lambda at, mode: at != compiled and may(at, mode))
    error, good = check_folders(around(tmp_path))
    assert (error.level, good.level) == ("error", "good")
    assert f"{compiled} (state_dir) can't be written" in error.message


@pytest.mark.parametrize(
    ("free_mb", "level"), [(50, "error"), (400, "warning"), (429, "warning"), (430, "good")]
)
def test_a_disk_needs_room_for_what_may_still_come(tmp_path, monkeypatch, free_mb, level) -> None:
    usage = SimpleNamespace(free=free_mb * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    journal = tmp_path / "state" / "journal"
    journal.mkdir(parents=True)
    (journal / "old").write_bytes(bytes(10 * 10**6))
    (found,) = check_folders(around(tmp_path, journal={"max_mb": 40}, durable={"max_mb": 100}))
    assert found.level == level
    assert ("330 MB more" in found.message) is (level != "good")


def certificate(folder: Path, name: str, since: timedelta, until: timedelta) -> None:
    now = datetime.now(timezone.utc)
    issued = trustme.CA().issue_cert(
        f"{name}.example", not_before=now + since, not_after=now + until
    )
    issued.private_key_pem.write_to_path(folder / f"{name}.key")
    (folder / f"{name}.key").chmod(0o600)
    for each in issued.cert_chain_pems:
        each.write_to_path(folder / f"{name}.pem", append=True)


@pytest.mark.parametrize(
    ("since_days", "until_days", "level", "told"),
    [
        (-1, 100, "good", "valid until"),
        (-1, 3, "warning", "expires on"),
        (-1, 29, "warning", "expires on"),
        (-9, -1, "error", "expired on"),
        (2, 100, "error", "valid from"),
        (-1, 365 * 40, "good", "valid until 20"),
    ],
)
def test_a_certificate_is_told_before_it_expires(
    tmp_path, since_days, until_days, level, told
) -> None:
    certificate(tmp_path, "box", timedelta(days=since_days), timedelta(days=until_days))
    readable, found = check_files(around(tmp_path, tls={"cert": "box.pem", "key": "box.key"}))
    assert (readable.level, found.level) == ("good", level)
    assert f"{tmp_path / 'box.pem'}: {told}" in found.message


@pytest.mark.parametrize(
    ("since_days", "until_days", "level", "told"),
    [
        (-1, 100, "good", "valid until"),
        (-1, 29, "warning", "expires on"),
        (-9, -1, "error", "expired on"),
        (2, 100, "error", "valid from"),
    ],
)
def test_what_a_client_here_trusts_and_shows_is_told_before_it_expires(
    tmp_path, monkeypatch, since_days, until_days, level, told
) -> None:
    certificate(tmp_path, "own", timedelta(days=since_days), timedelta(days=until_days))
    for variable, name in (("CA", "own.pem"), ("CERT", "own.pem"), ("KEY", "own.key")):
        monkeypatch.setenv(f"LAXITY_{variable}", str(tmp_path / name))
    _, *found = check_files(around(tmp_path))
    assert [each.level for each in found] == [level] * 2
    for each, variable in zip(found, ("LAXITY_CA", "LAXITY_CERT"), strict=True):
        assert f"{variable}={tmp_path / 'own.pem'}: {told}" in each.message


@pytest.mark.parametrize(
    ("ca", "cert", "key", "told"),
    [
        ("no", "own.pem", "own.key", "LAXITY_CA={}/no can't be used: No such file"),
        ("junk", "own.pem", "own.key", "LAXITY_CA={}/junk can't be used: [X509: NO_CERTIFICATE"),
        ("own.pem", "own.pem", "other.key", "{}/other.key can't be used: [X509: KEY_VALUES_MISM"),
        ("own.pem", "own.pem", None, "LAXITY_CERT={}/own.pem can't be used: "),
    ],
)
def test_files_that_a_client_here_can_not_use_are_named(
    tmp_path, monkeypatch, ca, cert, key, told
) -> None:
    for name in ("own", "other"):
        certificate(tmp_path, name, timedelta(), timedelta(days=100))
    (tmp_path / "junk").write_text("no certificate")
    for variable, name in (("CA", ca), ("CERT", cert), ("KEY", key)):
        if name is not None:
            monkeypatch.setenv(f"LAXITY_{variable}", str(tmp_path / name))
    (tmp_path / "own.pem").chmod(0o600)  # taken for the key's file where none is named
    (found,) = [each for each in check_files(around(tmp_path)) if each.level != "good"]
    assert found.level == "error"
    assert told.format(tmp_path) in found.message


def test_the_key_that_a_client_here_uses_is_its_owners_alone(tmp_path, monkeypatch) -> None:
    certificate(tmp_path, "own", timedelta(), timedelta(days=100))
    (tmp_path / "own.key").chmod(0o644)
    monkeypatch.setenv("LAXITY_CERT", str(tmp_path / "own.pem"))
    monkeypatch.setenv("LAXITY_KEY", str(tmp_path / "own.key"))
    (found,) = [each for each in check_files(around(tmp_path)) if each.level != "good"]
    assert found.level == "warning"
    assert f"chmod 600 {tmp_path / 'own.key'}" in found.remedy


def test_a_key_that_can_not_be_looked_at_is_told(tmp_path) -> None:
    """As in a folder of another user."""
    certificate(tmp_path, "box", timedelta(), timedelta(days=100))
    tls = {"cert": "box.pem", "key": "n" * 300}
    (found,) = [each for each in check_files(around(tmp_path, tls=tls)) if each.level == "error"]
    assert "can't be read: File name too long" in found.message


def test_keys_and_tokens_are_their_owners_alone(tmp_path) -> None:
    certificate(tmp_path, "box", timedelta(), timedelta(days=100))
    (tmp_path / "box.key").chmod(0o644)
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "token").chmod(0o640)
    tls = {"cert": "box.pem", "key": "box.key"}
    token, key, _ = check_files(around(tmp_path, tls=tls, token_file="token"))
    assert (token.level, key.level) == ("error", "warning")
    assert f"chmod 600 {tmp_path / 'token'}" in token.message
    assert f"chmod 600 {tmp_path / 'box.key'}" in key.remedy


def test_a_file_with_two_uses_is_told_of_once(tmp_path) -> None:
    listen, neighbours = {"native": "tcp://127.0.0.1:8702"}, {"name": "box-a"}
    settings = {"listen": listen, "neighbours": neighbours, "token_file": "no-such-token"}
    (found,) = check_files(around(tmp_path, **settings))
    assert "no-such-token: token_file: can't be read: No such file" in found.message


@pytest.mark.parametrize("own", [True, False])
def test_a_tenant_that_is_a_box_is_not_to_be_shown_the_owners_token(tmp_path, own: bool) -> None:
    for name in ("token", "peers"):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text("0123456789abcdef")
    (tmp_path / "tenants").touch(0o600)
    (tmp_path / "tenants").write_text("tenants: [{name: box-b, tokens: [], scopes: [infer, peer]}]")
    neighbours = {"name": "box-a", **({"token_file": "peers"} if own else {})}
    files = {"token_file": "token", "tenants_file": "tenants"}
    listen = {"native": "tcp://127.0.0.1:8702"}
    good, *found = check_files(around(tmp_path, **files, listen=listen, neighbours=neighbours))
    assert good.level == "good"
    assert [each.level for each in found] == ([] if own else ["warning"])
    assert all("box-b" in each.message for each in found)


def test_files_of_a_cloud_that_can_not_be_read_are_named(tmp_path) -> None:
    cloud = {"name": "far", "url": "grpcs://far.example", "token_file": "no", "tls": {"ca": "ca"}}
    token, ca = check_files(around(tmp_path, cloud=[cloud]))
    assert (token.level, ca.level) == ("error", "error")
    assert str(tmp_path / "no") in token.message
    assert str(tmp_path / "ca") in ca.message


def cached(**settings: object) -> Surroundings:
    return Surroundings(Config(cache=CacheConfig(**settings)), ())


def test_without_redis_there_is_nothing_to_look_at() -> None:
    assert [each.level for each in check_cache(Surroundings(Config(), ()))] == ["good"]
    assert [each.level for each in check_cache(cached())] == ["good"]


@pytest.mark.parametrize("said", ["Authentication required.", "HELLO must be called with AUTH"])
def test_a_password_that_is_missing_is_told_so_whatever_redis_was_asked_first(said: str) -> None:
    assert "requires a password, and the url has none" in why_away(AuthenticationError(said))


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
            client.execute_command("ACL", "SETUSER", "r", "on", ">pw", "+ping")
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
        (unknown,) = check_cache(cached(url=server.url.replace("//", "//r:pw@")))
        assert (unknown.level, "INFO" in unknown.remedy) == ("warning", True)
        _, replica, _ = check_cache(around)
        assert (replica.level, "its master" in replica.remedy) == ("warning", True)
        (refused,) = check_cache(cached(url=server.url))
        assert (refused.level, "requires a password" in refused.message) == ("error", True)
    finally:
        server.close()
    (away,) = check_cache(around)
    assert (away.level, "serves without it" in away.remedy) == ("error", True)


@needs_redis
def test_a_node_of_a_redis_cluster_is_no_cache() -> None:
    server = RedisServer("--cluster-enabled", "yes")
    try:
        _, cluster, _, _ = check_cache(cached(url=server.url))
        assert (cluster.level, "Redis Cluster" in cluster.message) == ("warning", True)
    finally:
        server.close()


def test_the_command_says_it_and_its_status_tells(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    file = tmp_path / "edge.yaml"
    file.write_text("cache: {url: 'redis://127.0.0.1:1/0'}\n")
    (tmp_path / "models").mkdir()

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["laxity", "doctor", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        return int(exit_.value.code or 0), capsys.readouterr().out

    assert run()[0] == 0
    assert run("--config", str(tmp_path / "none.yaml")) == (2, "")
    status, told = run("--config", str(file), "--json")
    assert status == 1
    assert [each["check"] for each in json.loads(told) if each["level"] == "error"] == ["cache"]
    status, told = run("--config", str(file))
    assert (status, "127.0.0.1:1" in told) == (1, True)


def test_lines_that_go_on_keep_their_indent(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text('cache: {url: "redis://127.0.0.1:1"}\n')
    (tmp_path / "models").mkdir()
    monkeypatch.setattr(sys, "argv", ["laxity", "doctor", "--config", str(file)])
    monkeypatch.setenv("COLUMNS", "50")
    with pytest.raises(SystemExit):
        main()
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    message = next(n for n, line in enumerate(lines) if line.startswith("error"))
    indent = lines[message].index("redis://")
    assert len(lines) > message + 2
    assert all(line[:indent].isspace() for line in lines[message + 1 :])
    assert max(map(len, lines)) <= 50
