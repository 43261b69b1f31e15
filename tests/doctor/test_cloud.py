"""`laxity doctor`: what it notices of clouds, without an inference or a word about secrets."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from benchmarks.ports import free_port
from scheduler.config.box import Config
from scheduler.config.cloud import CloudConfig
from scheduler.doctor import cloud
from scheduler.doctor.checks import check_clouds
from scheduler.doctor.findings import Finding, Surroundings
from tests.daemon.cloud.far_server import FarServer

TOKEN = "a-token-that-nobody-may-read"


class Described(FarServer):
    """Says what it is, as most do."""

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return pb.ServerMetadataResponse(name="far")


class Locked(FarServer):
    """Knows no token, and repeats the one that it is shown."""

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        shown = dict(context.invocation_metadata())["authorization"]
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{shown} is not known")


@contextmanager
def served(kind: type[FarServer] = Described) -> Iterator[FarServer]:
    """A server on an event loop of its own, as it is elsewhere."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(20)

    far = run(started(kind))
    try:
        yield far
    finally:
        run(far.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def started(kind: type[FarServer]) -> FarServer:
    return await kind().start()


def found(folder: Path, url: str, **settings: Any) -> list[Finding]:
    """What is found of one cloud, for a box that has the model `double`."""
    (folder / "models" / "double").mkdir(parents=True, exist_ok=True)
    cloud = CloudConfig(name="eu", url=url, **settings)
    around = Surroundings(Config(models=folder / "models", cloud=(cloud,)), ())
    return list(check_clouds(around))


def test_without_a_cloud_there_is_nothing_to_look_at():
    assert [each.level for each in check_clouds(Surroundings(Config(), ()))] == ["good"]


@pytest.mark.parametrize("kind", [Described, FarServer])
def test_a_cloud_that_can_be_used_is_good_and_is_sent_no_inference(tmp_path, kind):
    with served(kind) as far:
        (good,) = found(tmp_path, far.url, models=["double"])
        assert good.level == "good"
        assert good.message.startswith(f"eu at {far.url} answers in ")
        assert good.message.endswith("has 1 of 1 models")
        assert not far.asked


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_cloud_that_is_away_is_told_with_what_to_do(tmp_path, scheme):
    (away,) = found(tmp_path, f"{scheme}://127.0.0.1:{free_port()}")
    assert (away.level, away.check) == ("error", "cloud")
    assert "the box serves without it" in away.remedy


def test_a_cloud_whose_url_has_another_scheme_is_told_what_to_write(tmp_path):
    with served() as far:
        (wrong,) = found(tmp_path, far.url.replace("grpc:", "http:"))
    assert wrong.level == "error"
    assert wrong.remedy == "it does not speak http:// but grpc://, so write that in its url"


def test_a_cloud_that_says_nothing_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(cloud, "PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (away,) = found(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert away.level == "error"
    assert "no answer within 0.1" in away.message


def test_a_cloud_that_wants_another_token_is_told_without_it(tmp_path):
    token = tmp_path / "eu.token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with served(Locked) as far:
        (refused,) = found(tmp_path, far.url, token_file=token)
    assert refused.level == "error"
    assert "does not let the box in: UNAUTHENTICATED" in refused.message
    assert "token_file" in refused.remedy
    assert TOKEN not in refused.message


def test_something_else_at_its_address_is_no_cloud(tmp_path):
    class Silent(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self.send_error(404)

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        (wrong,) = found(tmp_path, f"http://127.0.0.1:{other.server_port}")
        other.shutdown()
        thread.join()
    assert wrong.level == "error"
    assert "not as a server of the Open Inference Protocol: HTTP 404" in wrong.message


def test_models_that_a_cloud_lacks_are_named(tmp_path):
    with served() as far:
        good, lacks = found(tmp_path, far.url, models={"double": "double", "faces": "f2"})
        assert good.message.endswith("has 1 of 2 models")
        assert lacks.level == "warning"
        assert "lacks the model 'f2': NOT_FOUND" in lacks.message
        (tmp_path / "models" / "other").mkdir()
        assert [each.level for each in found(tmp_path, far.url)] == ["good"]
        far.names = {"nothing"}
        assert [each.level for each in found(tmp_path, far.url)] == ["good", "warning"]


def test_a_token_that_can_not_be_read_is_left_to_the_check_of_files(tmp_path):
    assert not found(tmp_path, "grpcs://127.0.0.1:1", token_file=tmp_path / "none")
