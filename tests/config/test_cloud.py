from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from scheduler.config.box import Config, load_config
from scheduler.config.cloud import CloudConfig
from scheduler.config.problems import ConfigError


def cloud(tmp_path: Path, text: str) -> CloudConfig:
    file = tmp_path / "edge.yaml"
    file.write_text(f"cloud: [{{name: eu, {text}}}]\n")
    return load_config(file).cloud[0]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("grpcs://infer.example", "grpcs://infer.example:443"),
        ("grpc://10.0.0.1", "grpc://10.0.0.1:8001"),
        ("http://10.0.0.1/base/", "http://10.0.0.1:80/base"),
        ("https://[::1]:8443", "https://[::1]:8443"),
    ],
)
def test_a_url_says_protocol_and_place(tmp_path: Path, written: str, meant: str):
    assert cloud(tmp_path, f"url: '{written}'").url == meant


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("url: 'infer.example:443'", "should be like grpcs://infer.example:443"),
        ("url: 'tcp://a:1'", "should be like grpcs://infer.example:443"),
        ("url: 'grpc://a:1/v2'", "has a path, which gRPC does not support"),
        ("url: 'http://a:99999'", "impossible port"),
        ("url: 'https://me:secret@a'", "name a file that holds a token in token_file"),
        ("url: 'grpc://a', token_file: t", "unencrypted; use grpcs://a:8001"),
        ("url: 'grpc://a', budget_per_day: 1", "a budget needs cost_per_request or cost_per_s"),
        ("url: 'grpc://a', tls: {cert: c}", "cert and key go together"),
        ("url: 'grpc://a', max_concurency: 3", "max_concurrency"),
    ],
)
def test_a_mistake_is_said_with_what_would_be_right(tmp_path: Path, text: str, said: str):
    with pytest.raises(ConfigError, match="cloud") as raised:
        cloud(tmp_path, text)
    assert said in str(raised.value)
    assert "secret@" not in str(raised.value)


def test_headers_are_shown_nowhere_and_sent_as_they_are(tmp_path: Path):
    file = tmp_path / "edge.yaml"
    file.write_text("cloud: [{name: eu, url: 'http://a', headers: {X-API-Key: s3cret}}]\n")
    config = load_config(file)
    for shown in (repr(config), str(config.model_dump(mode="json")), str(config.model_dump())):
        assert "X-API-Key" in shown
        assert "s3cret" not in shown
    assert Config.model_validate(config.model_dump(mode="json"))  # as the doors' processes do
    crossed = pickle.loads(pickle.dumps(config)).cloud[0]
    assert crossed.headers["X-API-Key"].get_secret_value() == "s3cret"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cloud: [{name: eu, url: 'grpc://a', headers: {k: 77077}}]", "should be a valid string"),
        ("cloud: [{name: eu, url: 'grpc://a', headers: 'k: 77077'}]", "should be a mapping"),
        ("cloud: [{name: eu, url: 'grpc://a', headers: [k, 77077]}]", "should be a mapping"),
        ('cloud: [{name: eu, url: "grpc://a", headers: {k: "77077\\n"}}]', "of 'k' should be one"),
        ("cloud: [{name: eu, url: 'grpc://a', headers: {k: 77077é}}]", "of 'k' should be one"),
        ("cloud: [{name: eu, url: 'grpc://a', headers: {a-bin: '77077'}}]", "'a-bin' can't be"),
        ("cloud: [{name: eu, url: 'http://a', headers: {'a b': '77077'}}]", "'a b' can't be"),
        ("cloud: [{name: eu, url: 'https://a?key=77077'}]", "ends before ? and #, as 'https://a'"),
        ("cloud: [{name: eu, url: 'https://me:77077@a:port'}]", "a URL holds no password"),
        ("cloud: [{name: eu, url: 'me:77077@a:443'}]", "'a:443' should be like"),
        ("cloud: [{name: eu, url: ['https://me:77077@a']}]", "should be a valid string"),
        ("cloud: ['https://me:77077@a']", "should be a mapping with the keys name, url"),
        ("cloud: 'https://me:77077@a'", "should be a list"),
        ("cache: 'redis://:77077@a'", "should be a mapping with the keys url"),
        ("cache: {url: ['redis://:77077@a']}", "should be a valid string"),
        ("cache: {url: 'redis://:77077/x@a'}", "/ in a password is written as %2F"),
        ("cache: {central_url: {a: 'redis://:77077@a'}}", "should be a valid string"),
        ("'77077'", "this is a single value"),
    ],
)
def test_a_mistake_does_not_tell_a_secret(tmp_path: Path, text: str, said: str):
    file = tmp_path / "edge.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    assert said in str(raised.value)
    assert "77077" not in str(raised.value)


def test_what_is_no_secret_is_quoted(tmp_path: Path):
    with pytest.raises(ConfigError, match="got 'many'"):
        cloud(tmp_path, "url: 'grpc://a', max_batch: many")


def test_two_clouds_of_one_name_are_refused(tmp_path: Path):
    file = tmp_path / "edge.yaml"
    file.write_text("cloud: [{name: eu, url: 'grpc://a'}, {name: eu, url: 'grpc://b'}]\n")
    with pytest.raises(ConfigError, match="'eu' is listed 2 times"):
        load_config(file)


def test_models_go_by_another_name_there(tmp_path: Path):
    url = "url: 'grpc://a'"
    every, some, renamed = (
        cloud(tmp_path, f"{url}{more}")
        for more in ("", ", models: [a]", ", models: {a: resnet50_fp16}")
    )
    assert [each.remote_name("a") for each in (every, some, renamed)] == ["a", "a", "resnet50_fp16"]
    assert [each.remote_name("b") for each in (every, some, renamed)] == ["b", None, None]


def test_budgets_are_by_their_seconds(tmp_path: Path):
    text = "url: 'grpc://a', cost_per_request: 0.1, budget_per_hour: 1, budget_per_day: 5"
    assert cloud(tmp_path, text).budgets == {3_600: 1.0, 86_400: 5.0}
