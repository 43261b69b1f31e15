"""The configuration file: defaults, what is refused, and how a refusal reads."""

import contextlib
import os
import pickle
import re
import socket
import ssl
import textwrap
from importlib import resources
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scheduler import address
from scheduler.address import Address, AddressError, default_socket, default_url, parse_address
from scheduler.config.box import Config, config_schema, default_state_dir, load_config
from scheduler.config.cache import CacheConfig
from scheduler.config.problems import ConfigError
from scheduler.policy_loading import check_policy


@pytest.fixture
def write(tmp_path):
    def write_file(text):
        path = tmp_path / "edge.yaml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def refusal(write):
    """What a bad file is told, without the name of its folder."""

    def refuse(text):
        path = write(text)
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        return str(caught.value).replace(str(path), "edge.yaml").splitlines()

    return refuse


def test_every_key_has_a_default():
    config = load_config(None)
    assert config == Config()
    assert config.devices == "auto"
    assert config.listen.native == (default_socket(),)
    assert config.token_file is None


def test_an_empty_file_means_the_defaults(write):
    assert load_config(write("# nothing yet\n")).limits == Config().limits


def test_the_example_is_valid_and_names_every_key():
    text = (resources.files("configs") / "edge.yaml").read_text(encoding="utf-8")
    with resources.as_file(resources.files("configs") / "edge.yaml") as path:
        config = load_config(path)
    assert set(yaml.safe_load(text)) == set(Config.model_fields)
    for section in ("listen", "doors", "limits", "profile", "journal", "log"):
        assert set(yaml.safe_load(text)[section]) == set(getattr(Config(), section).model_dump())
    assert set(yaml.safe_load(text)["cache"]) == set(CacheConfig.model_fields)
    assert config.policy.options == {"quantile": 0.95}
    assert config.devices != "auto"
    assert config.devices[0].cores == (1, 2)


def test_a_policy_without_options_is_named_alone(write):
    policy = load_config(write("policy: edf")).policy
    assert (policy.name, policy.options) == ("edf", {})


def test_one_address_may_stand_for_a_list_of_one(write):
    config = load_config(write("listen: {native: 'tcp://127.0.0.1:0'}"))
    assert config.listen.native == (Address("tcp", host="127.0.0.1", port=0),)


def test_relative_paths_start_at_the_folder_of_the_file(write):
    path = write("models: ../models\nstate_dir: /srv/laxity\n")
    config = load_config(path)
    assert config.models == path.parent.parent / "models"
    assert config.state_dir == Path("/srv/laxity")


@pytest.mark.parametrize(
    ("policy", "placed"),
    [
        ("./mine.py", {"name": "{folder}/mine.py"}),
        ("../mine.py:Mine", {"name": "{above}/mine.py:Mine"}),
        ("{name: /srv/mine.py, depth: 3}", {"name": "/srv/mine.py", "depth": 3}),
        (
            "{name: own/spill.py, inner: {name: hedge, inner: edf.py}}",
            {
                "name": "{folder}/own/spill.py",
                "inner": {"name": "hedge", "inner": "{folder}/edf.py"},
            },
        ),
        ("mine.policies:Mine", {"name": "mine.policies:Mine"}),
        ("{name: edf, of: a.py}", {"name": "edf", "of": "a.py"}),
    ],
)
def test_a_file_of_a_policy_starts_there_as_well(write, monkeypatch, policy, placed):
    path = write(f"policy: {policy}")
    monkeypatch.chdir("/")
    folders = {"{folder}": str(path.parent), "{above}": str(path.parent.parent)}
    wanted = yaml.safe_dump(placed)
    for short, folder in folders.items():
        wanted = wanted.replace(short, folder)
    found = load_config(path)
    assert {"name": found.policy.name, **found.policy.options} == yaml.safe_load(wanted)
    assert Config.model_validate(found.model_dump(mode="json")).policy == found.policy


def test_a_file_of_a_policy_that_is_not_there_is_named_whole(write):
    path = write("policy: ./mine.py")
    with pytest.raises(ConfigError, match=f"edge.yaml:1: policy: .* no file {path.parent}/mine.py"):
        check_policy(load_config(path).policy, path)


def test_a_configuration_cannot_be_changed_in_place():
    with pytest.raises(ValidationError, match="frozen"):
        Config().drain_s = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        ("http://a:4318", "http://a:4318/v1/traces"),
        ("https://a/", "https://a/v1/traces"),
        ("http://a/otlp/v1/traces", "http://a/otlp/v1/traces"),
    ],
)
def test_a_collector_without_a_path_has_the_usual_one(write, said, becomes):
    config = load_config(write(f"tracing: {{endpoint: {said!r}}}"))
    assert config.tracing is not None
    assert config.tracing.endpoint == becomes


def test_all_mistakes_are_told_at_once_with_line_place_and_remedy(refusal):
    assert refusal(
        """\
        site: Line 3
        devices:
          - id: cpu:0
            core: [0]
            runtimes: [openvno]
        limts: {}
        limits:
          queue_requests: true
          body-mb: 3
        drain_s: .inf
        log: {level: noisy}
        listen: tcp://127.0.0.1:1
        """
    ) == [
        "edge.yaml:1: site: 'Line 3' should be lower-case letters, digits and dashes, like line-3",
        "edge.yaml:4: devices[0].core: unknown key; did you mean 'cores'?",
        "edge.yaml:5: devices[0].runtimes[0]: should be 'openvino', 'onnxruntime', "
        "'onnxruntime-cuda', 'onnxruntime-tensorrt', 'tensorrt' or 'emulated'; got 'openvno'; did "
        "you mean 'openvino'?",
        "edge.yaml:6: limts: unknown key; did you mean 'limits'?",
        "edge.yaml:8: limits.queue_requests: should be a valid integer; got true",
        "edge.yaml:9: limits.body-mb: unknown key; did you mean 'body_mb'?",
        "edge.yaml:10: drain_s: should be a finite number; got inf",
        "edge.yaml:11: log.level: should be 'debug', 'info', 'warning' or 'error'; got 'noisy'",
        "edge.yaml:12: listen: should be a mapping with the keys native, http, grpc; got 'tcp://127.0.0.1:1'",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("site: a\nsite: b", "edge.yaml:2: site: given twice; it is already on line 1"),
        (
            "limits: {body_mb: 1, body_mb: 2}",
            "edge.yaml:1: limits.body_mb: given twice; it is already on line 1",
        ),
        (
            "limits: {queue_mb: 99999999999999}",
            "queue_mb: should be less than or equal to 1000000000",
        ),
        ("drain_s: 1.0e+30", "drain_s: should be less than or equal to 1000000000; got 1e+30"),
        ("limits: {header_kb: 1000000}", "header_kb: should be less than or equal to 10000; got"),
        ("limits: {max_budget_s: 172800}", "should be less than or equal to 86400; got 172800"),
        ("models: {}", "edge.yaml:1: models: should be a path; got {}"),
        ("models: 2026-01-01", "edge.yaml:1: models: should be a path; got 2026-01-01"),
        ("drain_s:", "edge.yaml:1: drain_s: should be a valid number; got nothing"),
        ("doors: {model_deadline_ms: 5}", "model_deadline_ms: should be a mapping; got 5"),
        ("cache: {url: nope}", "edge.yaml:1: cache.url: 'nope' should be memory://, redis://"),
        ("cache: {url: 'me:secret@host:6379'}", "cache.url: 'host:6379' should be memory://"),
        ("devices: [{id: 'cpu:0', zzz: 1}]", "known here: id, cores, runtimes, options"),
        (
            "policy: [edf]",
            "edge.yaml:1: policy: should be a mapping with the keys name; got ['edf']",
        ),
        ("cache: on", "central_mb ({} takes their defaults)"),
        ("durable: off", "max_deadline_s (here {enabled: false}); got false"),
        ("tls: on", "tls: should be a mapping with the keys cert, key, client_ca; got true"),
        ("devices: automatic", "edge.yaml:1: devices: should be auto, or a list such as"),
        ("devices: []", "edge.yaml:1: devices: names no device; write auto"),
        ("devices: [{cores: [1]}]", "edge.yaml:1: devices[0].id: missing"),
        ("devices: [{id: cpu}]", "'cpu' should be a kind and a number, like cpu:0"),
        ("devices: [{id: 'cpu:0'}, {id: 'cpu:0'}]", "'cpu:0' is listed 2 times"),
        (
            "devices: [{id: 'cpu:0', cores: [1]}, {id: 'cpu:1', cores: [1]}]",
            "core 1 belongs to 'cpu:0' and to 'cpu:1'",
        ),
        ("devices: [{id: 'cpu:0', cores: 1}]", "devices[0].cores: should be a list; got 1"),
        ("devices: &a [*a]", "devices[0]: should be a mapping with the keys id"),
        ("devices: [gpu:0]", "got 'gpu:0'; did you mean {id: gpu:0}?"),
        ("listen: {native: []}", "edge.yaml:1: listen.native: should have at least 1 item; got []"),
        (
            "listen: {native: 'tls://127.0.0.1:1'}",
            "tls://127.0.0.1:1 needs it: {cert: FILE, key: FILE}",
        ),
        ("1: x", "edge.yaml:1: 1: unknown key; known here: site,"),
        ("- a", "edge.yaml:1: should be a mapping of keys to values; this is a list"),
        ("hello", "this is a single value"),
        ("a: [1", "edge.yaml:1: not YAML: expected ',' or ']', but got '<stream end>' (column 6)"),
        (
            "policy: [1\n\nsite: a",
            "edge.yaml:3: not YAML: expected ',' or ']', but got ':' (column 5), while parsing a "
            "flow sequence from line 1 on",
        ),
        ("site: 2001-99-99", "edge.yaml: not YAML: month must be in 1..12"),
        ("a: !!python/object:os.system {}", "edge.yaml:1: not YAML: could not determine"),
        ("site: a\n\nlog: \0", "edge.yaml:3: not YAML: the character U+0000"),
        ("a: !!bool x", "edge.yaml: not YAML: 'x'"),
        ("a: !!int ''", "edge.yaml: not YAML"),
        ("a: !!timestamp x", "edge.yaml: not YAML"),
        ("cloud: !!set {a}", "edge.yaml:1: cloud.0: should be a mapping"),
        ("models: ~nobody-of-that-name/m", "edge.yaml:1: models: '~nobody-of-that-name/m' starts"),
        ("listen: {http: 8700}", "listen.http: '8700' should be HOST:PORT, such as 127.0.0.1:8700"),
        ("listen: {native: 8700}", "listen.native: '8700' is not an address; accepted is unix://"),
        ("energy: {cost_per_kwh: true}", "energy.cost_per_kwh: should be a valid number; got true"),
        ("doors: {default_deadline_ms: yes}", "should be a valid number; got true"),
        ("doors: {model_deadline_ms: {a: yes}}", "should be a valid number; got true"),
        (
            "doors: {host_names: [box.example, 'box:8700']}",
            "doors.host_names[1]: 'box:8700' should be a host name without a port, like box",
        ),
        (
            "tracing: {endpoint: 'collector:4318'}",
            "tracing.endpoint: should be http://HOST:PORT or https://HOST:PORT; a password",
        ),
        ("tracing: {endpoint: 'http://a:s3cret@b'}", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("tracing: {share: 0.1}", "tracing.endpoint: missing"),
        (
            "tracing: {endpoint: 'http://a', share: 2}",
            "tracing.share: should be less than or equal",
        ),
        ("cache: {timeout_ms: '5'}", "cache.timeout_ms: should be a valid number; got '5'"),
        (
            "drain_s: 5s",
            "should be a valid number; got '5s'; the number alone, as the key names the unit",
        ),
        ("cache: {max_mb: 256 MB}", "got '256 MB'; the number alone, as the key names the unit"),
        (
            "cloud: [{name: a, url: 'http://a', cost_per_request: yes}]",
            "cloud[0].cost_per_request: should be a valid number; got true",
        ),
        ("a: " + "[" * 5000, "edge.yaml: not YAML"),
        ('models: "a\\0b"', "edge.yaml:1: models: 'a\\x00b' has a null byte in it, which no file"),
    ],
)
def test_a_mistake_is_told_where_it_is(refusal, text, told):
    (line,) = refusal(text)
    assert told in line


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: can't be read: No such file"):
        load_config(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match=r"x00b': can't be read: embedded null byte"):
        load_config(tmp_path / "a\0b")
    (tmp_path / "latin.yaml").write_bytes(b"site: caf\xe9\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml: not UTF-8 text: byte 9 is 0xe9"):
        load_config(tmp_path / "latin.yaml")


def test_a_pipe_is_refused_as_it_is_empty_when_it_is_read_again():
    """`laxity config check <(…)` called any file good."""
    end, start = os.pipe()
    try:
        os.write(start, b"limts: {}")
        os.close(start)
        with pytest.raises(ConfigError, match=f"/dev/fd/{end}: can't be read: .* a regular file"):
            load_config(Path(f"/dev/fd/{end}"))
    finally:
        os.close(end)


def test_an_error_crosses_processes(write):
    with pytest.raises(ConfigError) as caught:
        load_config(write("limts: {}"))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.problems == caught.value.problems


@pytest.mark.parametrize(
    "url",
    [
        "http://h",
        "redis://",
        "redis://h:port",
        "unix://",
        "memory://x",
        "redis:/:pw@h",
        "redis://h/cache",
    ],
)
def test_a_cache_is_memory_or_redis(refusal, url):
    (line,) = refusal(f"cache: {{url: '{url}'}}")
    assert "edge.yaml:1: cache.url: " in line
    assert "should be memory://, redis://HOST:PORT/DB" in line
    (line,) = refusal(f"cache: {{central_url: '{url}'}}")
    assert "cache.central_url: " in line


def test_a_password_of_a_cache_is_not_shown(write):
    url = "rediss://box:pw@h:1/0?ssl_ca_certs=/ca.pem"
    config = load_config(write(f"cache: {{url: '{url}', central_url: '{url}'}}"))
    shown = config.model_dump(mode="json")
    assert shown["cache"]["url"] == shown["cache"]["central_url"] == "rediss://h:1/0"
    assert Config.model_validate(shown).cache is not None  # as the doors' processes do
    memory = load_config(write("cache: {}"))
    assert Config.model_validate(memory.model_dump(mode="json")) == memory
    assert pickle.loads(pickle.dumps(config)).cache.url == url
    assert "pw" not in repr(config)


def test_nothing_is_cached_unless_it_is_asked_for(write):
    assert Config().cache is None
    cache = load_config(write("cache: {}")).cache
    assert cache is not None
    assert (cache.url, cache.ttl_s, cache.max_mb) == ("memory://", 600, 256)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "edge-7.lan", "[::]"])
def test_what_other_machines_can_reach_needs_a_token(write, refusal, host):
    (line,) = refusal(f"listen: {{native: 'tcp://{host}:8701'}}")
    assert "token_file: missing, and other machines can reach" in line
    config = load_config(write(f"listen: {{native: 'tcp://{host}:8701'}}\ntoken_file: token"))
    assert config.token_file is not None


@pytest.mark.parametrize(
    ("listen", "told"),
    [
        ("http: 'localhost:1', grpc: 'localhost:1'", "http localhost:1 .* grpc localhost:1"),
        (
            "http: ['127.0.0.1:1', 'tls://127.0.0.1:1']",
            "http 127.0.0.1:1 .* http tls://127.0.0.1:1",
        ),
        ("native: 'tcp://127.0.0.1:1', http: '0.0.0.0:1'", "native 127.0.0.1:1 .* http 0.0.0.0:1"),
        ("http: '[::]:1', grpc: '[::1]:1'", r"http \[::\]:1 .* grpc \[::1\]:1"),
        ("native: 'unix:///a', http: 'unix:///a'", "native unix:///a .* http unix:///a"),
    ],
)
def test_an_address_is_for_one_door(refusal, listen, told):
    (line,) = refusal(f"listen: {{{listen}}}\ntoken_file: token\ntls: {{cert: c, key: k}}")
    assert re.search(f"edge.yaml:1: listen: {told}; each has its own port or path", line)


@pytest.mark.parametrize(
    "listen",
    [
        "http: ['127.0.0.1:1', '127.0.0.2:1', '[::1]:1']",
        "http: '127.0.0.1:0', grpc: '127.0.0.1:0'",
        "http: 'unix:///a', grpc: 'unix:///b'",
        "http: '0.0.0.0:1', grpc: '[::]:1'",
    ],
)
def test_doors_may_be_beside_each_other(write, listen):
    assert len(load_config(write(f"listen: {{{listen}}}\ntoken_file: token")).listen.all) > 2


def test_what_can_be_reached_is_told_as_the_file_has_it(refusal):
    text = "listen: {native: 'tcp://a:1', http: ['b:2', '127.0.0.1:3'], grpc: 'c:4'}"
    (line,) = refusal(text)
    assert "other machines can reach tcp://a:1, b:2, c:4; name a file" in line


@pytest.mark.parametrize("url", ["unix:///tmp/a", "tcp://127.0.0.1:1", "tcp://[::1]:1"])
def test_what_only_this_machine_can_reach_needs_none(write, url):
    assert load_config(write(f"listen: {{native: '{url}'}}")).token_file is None


def test_every_key_is_described_in_the_schema():
    schema = config_schema()
    models = [schema, *schema["$defs"].values()]
    for model in models:
        for name, field in model["properties"].items():
            section = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            described = field.get("description") or section.get("description")
            assert described, f"{model['title']}.{name} has no description"
    assert {model["title"] for model in models} >= {"Config", "DeviceConfig", "LimitsConfig"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("unix:///run/laxity/laxity.sock", Address("unix", path="/run/laxity/laxity.sock")),
        ("tcp://127.0.0.1:8701", Address("tcp", host="127.0.0.1", port=8701)),
        ("tcp://[::1]:8701", Address("tcp", host="::1", port=8701)),
        ("tls://edge.example:443", Address("tls", host="edge.example", port=443)),
    ],
)
def test_an_address_survives_being_written_and_read(url, expected):
    assert parse_address(url) == expected
    assert str(expected) == url


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("/run/a.sock", "did you mean 'unix:///run/a.sock'?"),
        ("unix:/run/a.sock", "did you mean 'unix:///run/a.sock'?"),
        ("localhost:8701", "did you mean 'tcp://localhost:8701'?"),
        ("edge", "accepted is unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT"),
        ("http://edge:80", "unknown scheme 'http'; accepted is"),
        ("grpcs://edge:80", "that door is for other clients than laxity's own"),
        ("unix://a.sock", "needs the absolute path of a socket"),
        ("unix:///" + "a" * 107, "has 108 bytes; a unix socket's may have 107"),
        ("tcp://edge", "lacks a port: tcp://HOST:PORT"),
        ("tcp://:8701", "lacks a host: tcp://HOST:PORT"),
        ("tcp://edge:99999", "not of the form tcp://HOST:PORT"),
        ("tcp://edge:1/path", "holds more than a host and a port"),
        ("tcp://me@edge:1", "holds more than a host and a port"),
        ("tcp://[::1:1", "not of the form tcp://HOST:PORT"),
    ],
)
def test_an_address_that_is_none_is_told_what_would_be(url, told):
    with pytest.raises(AddressError) as caught:
        parse_address(url)
    assert told in str(caught.value)
    assert repr(url) in str(caught.value) or url in str(caught.value)


@pytest.mark.parametrize("scheme", ["", "unix://", "tcp://", "tls://"])
@given(text=st.text())
def test_any_text_is_an_address_or_an_address_error(scheme, text):
    with contextlib.suppress(AddressError):
        assert isinstance(parse_address(scheme + text), Address)


def test_the_default_socket_depends_on_who_runs_it(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert str(default_socket()) == "unix:///run/user/1000/laxity/laxity.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert str(default_socket()) == "unix:///run/laxity/laxity.sock"
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(default_socket()) == "unix:///home/ada/.laxity/run/laxity.sock"


def test_a_client_finds_its_own_daemon_before_the_systems(monkeypatch, tmp_path):
    monkeypatch.delenv("LAXITY_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "user"))
    monkeypatch.setattr(address, "SYSTEM_SOCKET", tmp_path / "system.sock")
    own = tmp_path / "user" / "laxity" / "laxity.sock"
    assert default_url() == f"unix://{own}"
    (tmp_path / "system.sock").touch()
    assert default_url() == f"unix://{tmp_path / 'system.sock'}"
    own.parent.mkdir(parents=True)
    own.touch()
    assert default_url() == f"unix://{own}"
    monkeypatch.setenv("LAXITY_URL", "tcp://edge-7:8701")
    assert default_url() == "tcp://edge-7:8701"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"), "Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (socket.gaierror(8, "nodename nor servname provided"), "nodename nor servname provided"),
        (ssl.SSLError(1, "certificate verify failed"), "certificate verify failed"),
        (OSError("Multiple exceptions: a, b"), "Multiple exceptions: a, b"),
        (TimeoutError(), ""),
        (ValueError("no address"), "no address"),
    ],
)
def test_an_error_says_its_reason_in_the_words_of_whoever_has_its_number(error, told):
    assert address.plainly(error) == told


def test_a_socket_that_can_not_be_looked_at_is_not_there(monkeypatch, tmp_path):
    """As in a folder of another user."""
    monkeypatch.delenv("LAXITY_URL", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(address, "SYSTEM_SOCKET", tmp_path / ("n" * 300))
    assert default_url() == f"unix://{tmp_path / 'laxity' / 'laxity.sock'}"


def test_the_state_folder_depends_on_who_runs_it(monkeypatch):
    monkeypatch.delenv("LAXITY_STATE_DIR", raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert default_state_dir() == Path("/var/lib/laxity")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_state_dir() == Path("/home/ada/.local/state/laxity")
    monkeypatch.setenv("XDG_STATE_HOME", "no/absolute/path")
    assert default_state_dir() == Path("/home/ada/.local/state/laxity")
    monkeypatch.setenv("XDG_STATE_HOME", "/data/state")
    assert default_state_dir() == Path("/data/state/laxity")
    monkeypatch.setenv("LAXITY_STATE_DIR", "/srv/state")
    assert Config().state_dir == Path("/srv/state")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "neighbours: {join: ['10.0.0.7:8702']}",
            "add a tcp:// or tls:// address to listen.native",
        ),
        ("neighbours: {join: ['10.0.0.7']}", "HOST:PORT"),
        ("neighbours: {join: 'unix:///run/x.sock'}", "HOST:PORT"),
        ("neighbours: {name: Box A}", "like box-a"),
        (
            "listen: {native: 'tcp://127.0.0.1:0'}\nneighbours: {}",
            "name a file that holds it under token_file",
        ),
    ],
)
def test_boxes_that_could_not_meet_are_told_why(refusal, text, wanted):
    assert any(wanted in line for line in refusal(text))


def test_a_command_line_may_say_whom_to_join(write, tmp_path):
    token = tmp_path / "token"
    path = write(f"listen: {{native: 'tcp://127.0.0.1:0'}}\ntoken_file: {token}\n")
    config = load_config(path, {"neighbours": {"join": ["10.0.0.7:8702"]}})
    assert config.neighbours is not None
    assert [str(address) for address in config.neighbours.join] == ["tcp://10.0.0.7:8702"]


def test_what_a_command_line_says_counts_more_than_the_file(write, tmp_path):
    path = write("models: ./models\nlog: {level: debug, format: auto}\n")
    config = load_config(path, {"models": str(tmp_path / "other"), "log": {"format": "json"}})
    assert config.models == tmp_path / "other"
    assert (config.log.level, config.log.format) == ("debug", "json")
    with pytest.raises(ConfigError, match="log: "):
        load_config(write("log: loud\n"), {"log": {"format": "json"}})
