"""A box with tenants and TLS: who gets in, how far, and how that changes while it runs."""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
from tritonclient.grpc import service_pb2, service_pb2_grpc

from scheduler import Client, ModelNotFound, Overloaded, Unauthorized, Unavailable
from scheduler.tenants import hash_of, new_token
from tests.e2e.running_agent import ModelsNamed, RunningAgent, command
from tests.waiting import PATIENCE_S, eventually

X = {"x": np.array([-1.0, 0.0, 2.0], np.float32)}
BODY = json.dumps({"inputs": [{"name": "x", "shape": [3], "datatype": "FP32", "data": [-1, 0, 2]}]})
TOKENS = {name: new_token() for name in ("line", "lab", "boss", "arm", "new")}


def write_tenants(path: Path, line_tokens: list[str]) -> None:
    tenants = [
        {"name": "line", "tokens": line_tokens, "models": ["relu", "slow"], "max_priority": 2},
        {
            "name": "lab",
            "tokens": [hash_of(TOKENS["lab"])],
            "scopes": ["infer", "metrics"],
            "rate_per_s": 5,
            "burst": 5,
        },
        {"name": "boss", "tokens": [hash_of(TOKENS["boss"])], "scopes": ["infer", "admin"]},
        {"name": "arm", "certificates": ["arm-7.example"]},
    ]
    fresh = path.with_suffix(".fresh")
    fresh.touch(0o600)
    fresh.write_text(json.dumps({"tenants": tenants}))
    fresh.replace(path)


@dataclass
class Box:
    agent: RunningAgent
    tenants: Path
    authority: trustme.CA
    certificate: trustme.LeafCert

    def ask(
        self, path: str = "/v2/models/relu/infer", token: str | None = None, body: str = BODY
    ) -> tuple[int, dict[str, Any]]:
        http = HTTPConnection(self.agent.address("http"), timeout=PATIENCE_S)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        http.request("POST", path, body, headers)
        response = http.getresponse()
        answer = json.loads(response.read())
        http.close()
        return response.status, answer


@pytest.fixture(scope="module")
def box(models_named: ModelsNamed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    write_certificate(folder, certificate)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    write_tenants(folder / "tenants.yaml", [hash_of(TOKENS["line"])])
    agent = RunningAgent(
        folder,
        models_named("relu", "slow", "wide"),
        listen={
            "native": [f"unix://{folder}/s.sock", "tls://127.0.0.1:0"],
            "http": ["127.0.0.1:0", "tls://127.0.0.1:0"],
            "grpc": ["127.0.0.1:0", "tls://127.0.0.1:0"],
        },
        tls={
            "cert": str(folder / "cert.pem"),
            "key": str(folder / "key.pem"),
            "client_ca": str(folder / "ca.pem"),
        },
        tenants_file=str(folder / "tenants.yaml"),
        profile={"seconds": 0.2},
    )
    yield Box(agent, folder / "tenants.yaml", authority, certificate)
    agent.end()


def write_certificate(folder: Path, certificate: trustme.LeafCert) -> None:
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    (folder / "cert.pem").write_bytes(chain)


def client_context(box: Box, name: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    box.authority.configure_trust(context)
    if name is not None:
        box.authority.issue_cert(name).configure_cert(context)
    return context


def test_no_door_opens_without_a_token(box: Box) -> None:
    for token in (None, "wrong-token-of-some-length"):
        status, answer = box.ask(token=token)
        assert (status, answer["code"]) == (401, "unauthorized")
        assert box.ask("/v2/health/live", token)[0] == 401
        with pytest.raises(Unauthorized):
            Client(box.agent.url, token=token)
        metadata = [("authorization", f"Bearer {token}")] if token else []
        with grpc.insecure_channel(box.agent.address("grpc")) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                stub.ServerLive(service_pb2.ServerLiveRequest(), metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_tenant_has_its_models_at_every_door(box: Box) -> None:
    token = TOKENS["line"]
    assert box.ask(token=token)[0] == 200
    status, answer = box.ask("/v2/models/wide/infer", token)
    assert (status, answer["code"]) == (404, "model_not_found")
    with Client(box.agent.url, token=token) as client:
        assert client.infer("relu", X, deadline_ms=5000)["y"][2] == 2
        with pytest.raises(ModelNotFound):
            client.infer("wide", {"x": np.zeros(9_000, np.float32)}, deadline_ms=5000)
    with grpc.insecure_channel(box.agent.address("grpc")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        index = stub.RepositoryIndex(
            service_pb2.RepositoryIndexRequest(),
            metadata=[("authorization", f"Bearer {token}")],
        )
        assert {entry.name for entry in index.models} == {"relu", "slow"}


def test_priorities_and_orders_have_limits(box: Box) -> None:
    body = json.loads(BODY)
    body["parameters"] = {"priority": 1}
    status, answer = box.ask(token=TOKENS["line"], body=json.dumps(body))
    assert (status, answer["code"]) == (403, "forbidden")
    for path in ("/v2/repository/models/relu/unload", "/v2/policy"):
        assert box.ask(path, TOKENS["line"], "{}")[0] == 403
    boss = TOKENS["boss"]
    assert box.ask("/v2/repository/models/relu/unload", boss, "")[0] == 200
    assert box.ask(token=TOKENS["line"])[0] == 503
    assert box.ask("/v2/repository/models/relu/load", boss, "")[0] == 200
    assert box.ask(token=TOKENS["line"])[0] == 200
    status, answer = box.ask("/v2/policy", boss, '{"name": "edf"}')
    assert (status, answer) == (200, {"name": "edf"})
    inside = '{"name": "spill", "options": {"inner": "os:getcwd"}}'
    for unnamed in ('{"name": "os:getcwd"}', inside):
        status, answer = box.ask("/v2/policy", boss, unnamed)
        assert status == 400
        assert "in the configuration only" in answer["error"]
    assert box.ask("/v2/policy", boss, '{"name": "goodput"}')[0] == 200


def test_metrics_of_the_whole_box_are_a_scope_of_their_own(box: Box) -> None:
    def status(name: str) -> int:
        http = HTTPConnection(box.agent.address("http"), timeout=PATIENCE_S)
        http.request("GET", "/metrics", headers={"Authorization": f"Bearer {TOKENS[name]}"})
        answer = http.getresponse().status
        http.close()
        return answer

    assert (status("line"), status("lab")) == (403, 200)


def test_a_rate_holds_over_all_doors_and_says_when_to_come_back(box: Box) -> None:
    token = TOKENS["lab"]
    began_s = time.monotonic()

    def may() -> float:
        """How many requests the rate has let in by now at most."""
        return 5 + 5 * (time.monotonic() - began_s)

    with Client(box.agent.url, token=token) as client:
        futures = [client.submit("relu", X, deadline_ms=20_000) for _ in range(200)]
        refused = [f.exception() for f in futures if f.exception() is not None]
    let_in = len(futures) - len(refused)
    assert 5 <= let_in <= may()
    assert all(isinstance(error, Overloaded) for error in refused)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: box.ask(token=token), range(40)))
    no = [answer for status, answer in answers if status == 429]
    assert let_in + len(answers) - len(no) <= may()
    assert no[0]["limit"] == "rate"
    assert 0 < no[0]["retry_after_ms"] <= 1000
    assert box.ask(token=TOKENS["line"])[0] == 200


def test_a_certificate_stands_for_a_token_and_none_keeps_the_door_shut(box: Box) -> None:
    host = box.agent.address("https")
    http = HTTPSConnection(host, timeout=PATIENCE_S, context=client_context(box, "arm-7.example"))
    http.request("POST", "/v2/models/relu/infer", BODY)
    assert http.getresponse().status == 200
    http.close()
    stranger = HTTPSConnection(host, timeout=PATIENCE_S, context=client_context(box, "else"))
    stranger.request("POST", "/v2/models/relu/infer", BODY)
    assert stranger.getresponse().status == 401
    stranger.close()
    nobody = HTTPSConnection(host, timeout=PATIENCE_S, context=client_context(box, None))
    nobody.connect()  # TLS 1.3 tells the client only when it reads
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _first_answer(nobody)
    nobody.close()


def _first_answer(http: HTTPSConnection) -> int:
    http.request("GET", "/v2")
    return http.getresponse().status


def test_certificates_work_over_grpc_as_well(box: Box) -> None:
    pair = box.authority.issue_cert("arm-7.example")
    chain = b"".join(blob.bytes() for blob in pair.cert_chain_pems)
    root = box.authority.cert_pem.bytes()
    request = service_pb2.ModelReadyRequest(name="relu")
    known = grpc.ssl_channel_credentials(root, pair.private_key_pem.bytes(), chain)
    for credentials, opens in ((known, True), (grpc.ssl_channel_credentials(root), False)):
        with grpc.secure_channel(box.agent.address("grpcs"), credentials) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            if opens:
                assert stub.ModelReady(request, timeout=PATIENCE_S).ready
                continue
            with pytest.raises(grpc.RpcError):
                stub.ModelReady(request, timeout=PATIENCE_S)


def test_certificates_work_over_the_native_protocol_as_well(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"tls://{box.agent.address('tls')}"
    box.authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("LAXITY_CA", str(tmp_path / "ca.pem"))
    with pytest.raises(Unavailable):  # the handshake fails
        Client(url, token=TOKENS["boss"], connect_timeout_s=0.5)
    for name, opens in (("arm-7.example", True), ("else", False)):
        pair = box.authority.issue_cert(name)
        pair.private_key_and_cert_chain_pem.write_to_path(tmp_path / f"{name}.pem")
        monkeypatch.setenv("LAXITY_CERT", str(tmp_path / f"{name}.pem"))
        if opens:
            with Client(url) as client:
                assert client.infer("relu", X, deadline_ms=5000)["y"][2] == 2
        else:
            with pytest.raises(Unauthorized):
                Client(url)
            with Client(url, token=TOKENS["boss"]) as client:
                wide = client.infer("wide", {"x": np.zeros(9_000, np.float32)}, deadline_ms=5000)
                assert wide["y"].shape == (9_000,)


def test_tokens_rotate_without_a_restart(box: Box) -> None:
    old, new = TOKENS["line"], TOKENS["new"]
    pids = serving(box)
    write_tenants(box.tenants, [hash_of(old), hash_of(new)])
    eventually(lambda: box.ask(token=new)[0] == 200)
    assert box.ask(token=old)[0] == 200
    write_tenants(box.tenants, [hash_of(new)])
    eventually(lambda: box.ask(token=old)[0] == 401)
    assert box.ask(token=new)[0] == 200
    with Client(box.agent.url, token=new) as client:
        client.infer("relu", X, deadline_ms=5000)
    box.tenants.write_text("tenants: 7")  # a mistake changes nothing
    write_tenants(box.tenants, [hash_of(old), hash_of(new)])
    eventually(lambda: box.ask(token=old)[0] == 200)
    eventually(lambda: serving(box) == pids)


def serving(box: Box) -> set[int]:
    """The processes that must not end; Ray's own come and go."""
    parts = ("-m edge_agent", "ray::SchedulerProcess", "ray::WorkerProcess", "ingress.process")
    commands = {process.pid: command(process) for process in box.agent.processes()}
    return {pid for pid, said in commands.items() if any(part in said for part in parts)}


def test_certificates_are_replaced_without_a_restart(box: Box) -> None:
    host, _, port = box.agent.address("https").rpartition(":")

    doors = [(host, int(port)), ("127.0.0.1", int(box.agent.address("tls").rpartition(":")[2]))]

    def served() -> list[bytes]:
        return [served_certificate(box, *door) for door in doors]

    old = served()
    write_certificate(box.tenants.parent, box.authority.issue_cert("127.0.0.1"))
    eventually(lambda: not {*served()} & {*old})


def served_certificate(box: Box, host: str, port: int) -> bytes:
    context = client_context(box, "arm-7.example")
    with (
        socket.create_connection((host, port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.getpeercert(True) or b""


def test_who_was_signed_by_an_authority_that_was_removed_is_refused(box: Box) -> None:
    def let_in() -> set[str]:
        return {door for door in ("https", "tls", "grpcs") if lets_in(box, door)}

    trusted = box.tenants.parent / "ca.pem"
    trustme.CA().cert_pem.write_to_path(trusted)
    eventually(lambda: not let_in())
    box.authority.cert_pem.write_to_path(trusted)
    eventually(lambda: let_in() == {"https", "tls", "grpcs"})


def lets_in(box: Box, door: str) -> bool:
    context = client_context(box, "arm-7.example")
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # which says it during the handshake
    context.set_alpn_protocols(["h2"] if door == "grpcs" else ["http/1.1"])
    host, _, port = box.agent.address(door).rpartition(":")
    try:
        with (
            socket.create_connection((host, int(port)), timeout=PATIENCE_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except (ssl.SSLError, ConnectionError):
        return False


def test_a_door_that_dies_is_back(box: Box) -> None:
    doors = [p for p in box.agent.processes() if "scheduler.ingress.process" in command(p)]
    assert len(doors) == 2
    for door in doors:
        os.kill(door.pid, 9)
    token = TOKENS["boss"]

    def opens() -> bool:
        try:
            return box.ask(token=token)[0] == 200
        except OSError:
            return False

    eventually(opens)
    with grpc.insecure_channel(box.agent.address("grpc")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = [("authorization", f"Bearer {token}")]
        live = stub.ServerLive(
            service_pb2.ServerLiveRequest(),
            metadata=metadata,
            wait_for_ready=True,
            timeout=PATIENCE_S,
        )
        assert live.live
