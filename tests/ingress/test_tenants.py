"""Who may come in and how far: tokens, certificates, scopes, and the files that name them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.config.problems import ConfigError
from scheduler.core.limits import Limits
from scheduler.errors import Forbidden, ModelNotFound, Overloaded, Unauthorized
from scheduler.ingress.quotas import Quotas
from scheduler.tenants import (
    ANYONE,
    Access,
    Tenant,
    hash_of,
    load_access,
    new_token,
    read_tenants,
    read_token,
)

TOKEN, OTHER = new_token(), new_token()
CAMERA = Tenant(name="camera", tokens=(hash_of(TOKEN),), models=("digits", "line-*"))


def secret(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def test_a_token_opens_and_another_does_not() -> None:
    access = Access([CAMERA])
    assert access.by_token(TOKEN) is CAMERA
    for wrong in (None, "", OTHER, TOKEN[:-1], TOKEN + "x", hash_of(TOKEN), "x" * 5000, "é"):
        with pytest.raises(Unauthorized):
            access.by_token(wrong)


def test_two_tokens_at_a_time_make_a_rotation() -> None:
    both = CAMERA.model_copy(update={"tokens": (hash_of(TOKEN), hash_of(OTHER))})
    assert Access([both]).by_token(TOKEN) == Access([both]).by_token(OTHER) == both


def test_nobody_is_asked_where_there_are_no_tenants() -> None:
    assert not Access().required
    assert Access([CAMERA]).required
    assert Access().by_name("anyone") is ANYONE
    with pytest.raises(Unauthorized, match="no longer known"):
        Access().by_name("camera")


def test_a_certificate_names_its_tenant() -> None:
    tenant = Tenant(name="arm", certificates=("arm-7.example",))
    access = Access([CAMERA, tenant])
    assert access.by_certificate(["x", "arm-7.example"]) is tenant
    assert access.by_certificate(["x"]) is None


def test_scopes_models_and_priorities_are_kept() -> None:
    CAMERA.check_scope("infer")
    with pytest.raises(Forbidden, match=r"admin.*token_file or tenants_file"):
        CAMERA.check_scope("admin")
    for model in ("digits", "line-3"):
        CAMERA.check_model(model)
    with pytest.raises(ModelNotFound, match="'secret' is not in the repository"):
        CAMERA.check_model("secret")
    modest = Tenant(name="modest", max_priority=5)
    assert (modest.priority(None), modest.priority(6)) == (5, 6)
    with pytest.raises(Forbidden, match="priority 5 at best"):
        modest.priority(4)
    assert CAMERA.priority(None) == 3


def test_the_file_holds_hashes_and_says_every_mistake(tmp_path: Path) -> None:
    good = f"tenants:\n  - {{name: a, tokens: ['{hash_of(TOKEN)}'], rate_per_s: 5}}\n"
    (tenant,) = read_tenants(secret(tmp_path / "good", good))
    assert (tenant.name, tenant.rate_per_s) == ("a", 5)
    entries = (f"{{name: a, tokens: [{TOKEN}]}}", "{name: B}", "{name: c, rate_per: 5}")
    bad = "".join(["tenants:\n", *(f"  - {entry}\n" for entry in entries)])
    with pytest.raises(ConfigError) as caught:
        read_tenants(secret(tmp_path / "bad", bad))
    told = str(caught.value).splitlines()
    assert "does not belong into this file" in told[0]
    assert TOKEN not in str(caught.value)
    assert "tenants[1].name" in told[1]
    assert "unknown key; did you mean 'rate_per_s'?" in told[2]
    for misplaced in (TOKEN, f"tenants: {TOKEN}", f"tenants: [{TOKEN}]"):
        with pytest.raises(ConfigError) as caught:
            read_tenants(secret(tmp_path / "misplaced", misplaced))
        assert TOKEN not in str(caught.value)
    one = f"{{name: a, tokens: ['{hash_of(TOKEN)}'], certificates: [cam-1]}}"
    for key, shown in (("tokens", f"['{hash_of(TOKEN)}']"), ("certificates", "[cam-2, cam-1]")):
        text = f"tenants: [{one}, {{name: b, {key}: {shown}}}]"
        with pytest.raises(ConfigError, match=rf"tenants\[1\].{key}: one of them is another"):
            load_access(None, secret(tmp_path / key, text))
        with pytest.raises(ConfigError, match="one of them is another"):  # as `doctor` reads it
            read_tenants(tmp_path / key)
    with pytest.raises(ConfigError, match=r"tenants\[0\].tokens: one of them is another"):
        load_access(secret(tmp_path / "own", TOKEN), secret(tmp_path / "one", f"tenants: [{one}]"))
    for twice in ("owner", "a"):
        text = f"tenants: [{{name: a, tokens: []}}, {{name: {twice}, tokens: []}}]"
        with pytest.raises(ConfigError, match="is taken"):
            read_tenants(secret(tmp_path / twice, text))


def test_a_tenant_that_is_shut_out_has_no_tokens_and_one_without_the_key_is_a_mistake(
    tmp_path: Path,
) -> None:
    one = f"  - name: a\n    tokens: ['{hash_of(TOKEN)}']\n"
    whole = f"tenants:\n{one}  - name: b\n    tokens: []\n"
    assert [tenant.name for tenant in read_tenants(secret(tmp_path / "whole", whole))] == ["a", "b"]
    half = whole[: whole.index("    tokens: []")]
    with pytest.raises(ConfigError, match=r"half: tenants\[1\]: has neither tokens nor certificat"):
        read_tenants(secret(tmp_path / "half", half))


def test_a_token_file_holds_the_token_or_its_hash_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match="can't be read"):
        load_access(path, None)
    for text in (TOKEN + "\n", hash_of(TOKEN) + "\n"):
        assert load_access(secret(path, text), None).by_token(TOKEN).name == "owner"
    with pytest.raises(ConfigError, match="holds 5 characters; a token has 16 or more"):
        load_access(secret(path, "short"), None)
    with pytest.raises(ConfigError, match="64 hex digits"):
        load_access(secret(path, "sha256:abc"), None)
    secret(path, TOKEN).chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_access(path, None)


def test_each_line_of_a_token_file_is_accepted_and_the_first_is_shown_to_others(tmp_path: Path):
    old, new = TOKEN, new_token()
    for text in (f"{old}\n{new}\n", f"{new}\r\n{hash_of(old)}"):
        path = secret(tmp_path / "token", text)
        access = load_access(path, None)
        assert access.by_token(old).name == access.by_token(new).name == "owner"
        assert read_token(path) == text.split()[0]
        for wrong in (text, f"{old} {new}", ""):
            with pytest.raises(Unauthorized):
                access.by_token(wrong)
    with pytest.raises(ConfigError) as error:
        load_access(secret(path, f"{old}\n\nshort\nsha256:abc\n"), None)
    said = str(error.value)
    assert "line 2 holds 0 characters; a token has 16 or more" in said
    assert "line 3 holds 5 characters" in said
    assert "line 4 should be" in said
    with pytest.raises(ConfigError, match="hash or no token"):
        read_token(secret(path, f"{hash_of(old)}\n{new}"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# the token of line 3\n{}\n", "line 1 has a comment"),
        ("{} # of line 3\n", "has a comment"),
        ("\ufeff{}\n", "begins with a byte order mark"),
        ("{}\u00e9\n", "should be ASCII, but byte .* is 0xc3"),
    ],
)
def test_a_token_file_holds_nothing_but_tokens(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_bytes(text.format(TOKEN).encode())
    with pytest.raises(ConfigError, match=told):
        load_access(path, None)
    with pytest.raises(ConfigError, match=told.removeprefix("line 1 ")):
        read_token(path)


def test_a_rate_is_kept_with_a_burst_and_says_when_to_come_back() -> None:
    quotas, tenant = Quotas(Limits()), Tenant(name="a", rate_per_s=10, burst=3)
    for _ in range(3):
        quotas.admit(tenant, 0, now_ns=1)
    with pytest.raises(Overloaded) as refused:
        quotas.admit(tenant, 0, now_ns=1)
    assert refused.value.detail == {"tenant": "a", "limit": "rate", "retry_after_ms": 100.0}
    quotas.admit(tenant, 0, now_ns=100_000_001)
    assert quotas.held() == {"a": 4}


@given(st.lists(st.integers(0, 400_000_000), max_size=60))
def test_a_rate_is_never_exceeded_over_any_window(gaps_ns: list[int]) -> None:
    quotas, tenant = Quotas(Limits()), Tenant(name="a", rate_per_s=10, burst=3)
    now_ns, admitted = 0, []
    for gap_ns in gaps_ns:
        now_ns += gap_ns
        try:
            quotas.admit(tenant, 0, now_ns)
        except Overloaded:
            continue
        admitted.append(now_ns)
    for first, start_ns in enumerate(admitted):
        for last, end_ns in enumerate(admitted[first:], 1):
            assert last <= 3 + (end_ns - start_ns) / 1e8 + 1e-6


def test_shares_of_requests_and_bytes_are_kept_and_given_back() -> None:
    quotas = Quotas(Limits(requests=10, bytes=1000))
    half = Tenant(name="half", queue_share=0.5)
    for _ in range(5):
        quotas.admit(half, 10, 0)
    with pytest.raises(Overloaded, match="5 requests at once"):
        quotas.admit(half, 10, 0)
    quotas.admit(Tenant(name="other"), 900, 0)
    quotas.release(half, 10)
    with pytest.raises(Overloaded, match="500 bytes"):
        quotas.admit(half, 461, 0)
    quotas.admit(half, 460, 0)
    few = Tenant(name="few", concurrency=1)
    quotas.admit(few, 0, 0)
    with pytest.raises(Overloaded, match="1 requests at once"):
        quotas.admit(few, 0, 0)
