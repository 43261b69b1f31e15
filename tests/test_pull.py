"""Models come whole and verified, from a box or from the web, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading
from collections.abc import Iterator
from errno import ENOSPC
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scheduler import AsyncClient
from scheduler.cli.main import command_line
from scheduler.client.tasks import Question
from scheduler.core.events import TargetUp
from scheduler.core.offers import Offer
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.driver import Driver
from scheduler.errors import InvalidInput, ModelNotFound, Unauthorized, Unavailable
from scheduler.ingress.model_shelf import ModelShelf
from scheduler.ingress.native import DoorRules, NativeDoor
from scheduler.model_files import FileEntry, checked_entries, entries_from_sums
from scheduler.pulling import pull, source_of
from scheduler.tenants import OWNER, Access, hash_of
from scheduler.wire import FrameLimits
from tests.neighbours.boxes import card
from tests.workers.onnx_models import relu, save

TOKEN = "lx_0123456789abcdef"
LIMIT = 10_000_000


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A repository with a model whose weights are larger than a chunk."""
    root = tmp_path / "shelf"
    save(relu(), root / "relu/model.onnx")
    (root / "relu/model.yaml").write_text("variants: {only: {file: model.onnx}}\n")
    (root / "relu/model.onnx.data").write_bytes(bytes(3_000_000))
    return root


@pytest.fixture
def web(shelf: Path) -> Iterator[str]:
    names = sorted((shelf / "relu").iterdir())
    sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in names]
    (shelf / "relu/SHA256SUMS").write_text("".join(sums))

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(shelf))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def box(shelf: Path) -> Iterator[str]:
    """A native door in a thread, which serves that repository."""
    loop = asyncio.new_event_loop()

    async def open_door() -> tuple[asyncio.Server, NativeDoor]:
        driver = Driver()
        driver.catalog.learn("cpu:0", [card("relu"), card("other")], [])
        spec = TargetSpec("cpu:0", (Offer("relu", "only", "r", {1: (1,)}),))
        driver.core.handle(TargetUp(spec), 1)
        access = Access([OWNER.model_copy(update={"tokens": (hash_of(TOKEN),)})])
        rules = DoorRules("s", access, FrameLimits(), 8, 10**9)
        door = NativeDoor(driver, rules, dict)
        door.shelf = ModelShelf(shelf)
        return await loop.create_server(door, "127.0.0.1", 0), door

    async def close_door() -> None:
        server.close()
        door.close()
        await asyncio.sleep(0.01)

    server, door = loop.run_until_complete(open_door())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    asyncio.run_coroutine_threadsafe(close_door(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def fine(_root: Path) -> str | None:
    return None


def files(folder: Path) -> dict[str, bytes]:
    return {
        p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != "SHA256SUMS"
    }


@pytest.fixture
def folder(web: str, shelf: Path) -> str:
    """The same folder, without a server."""
    return f"file://{shelf}"


@pytest.mark.parametrize("source", ["web", "folder", "box"])
def test_a_model_comes_whole_and_a_second_time_not_at_all(request, source, shelf, root):
    found = source_of(request.getfixturevalue(source), "relu", TOKEN)
    assert pull(found, root, "relu", LIMIT, fine)
    assert files(root / "relu") == files(shelf / "relu")
    assert not pull(found, root, "relu", LIMIT, fine)
    assert [p.name for p in root.iterdir()] == ["relu"]


@pytest.mark.parametrize("offset", [-1, 1 << 63])
def test_an_offset_that_no_file_has_is_refused(box, offset):
    async def ask() -> None:
        async with AsyncClient(f"tcp://{box}", token=TOKEN) as client:
            await client._take(Question("model_files", {"model": "relu"}))
            place = {"model": "relu", "path": "model.onnx.data", "offset": offset}
            with pytest.raises(InvalidInput, match="offset"):
                await client._take(Question("model_file", place))

    asyncio.run(ask())


def test_other_files_of_that_name_are_replaced_only_when_asked(web, shelf, root):
    found = source_of(web, "relu", None)
    mine = root / "relu/model.yaml"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(InvalidInput, match="holds other files; to replace them, pass --replace"):
        pull(found, root, "relu", LIMIT, fine)
    with pytest.raises(InvalidInput, match="no valid model"):
        pull(found, root, "relu", LIMIT, lambda _: "no", replace=True)
    assert mine.read_text() == "mine"
    assert pull(found, root, "relu", LIMIT, fine, replace=True)
    assert files(root / "relu") == files(shelf / "relu")
    assert not pull(found, root, "relu", LIMIT, fine, replace=True)
    assert [path.name for path in root.iterdir()] == ["relu"]


def test_what_cannot_be_replaced_stays(web, root, monkeypatch):
    mine = root / "relu/model.yaml"
    mine.parent.mkdir()
    mine.write_text("mine")
    rename = os.rename

    def fails(source: Path, target: Path) -> None:
        if target == root / "relu" and source.name == "relu":
            raise OSError(ENOSPC, "no room")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="no room"):
        pull(source_of(web, "relu", None), root, "relu", LIMIT, fine, replace=True)
    assert mine.read_text() == "mine"
    assert [path.name for path in root.iterdir()] == ["relu"]


@pytest.mark.parametrize("harm", ["changed", "large", "no model"])
def test_what_is_not_as_promised_leaves_nothing(web, shelf, root, harm):
    if harm == "changed":
        (shelf / "relu/model.yaml").write_text("variants: {evil: {file: model.onnx}}\n")
    limit = 2_000_000 if harm == "large" else LIMIT
    with pytest.raises(InvalidInput):
        pull(
            source_of(web, "relu", None),
            root,
            "relu",
            limit,
            lambda _: "no" if harm == "no model" else None,
        )
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    "path", ["../x", "/etc/passwd", "a/../../x", ".ssh", "a//b", "a\\b", "", "1/2/3/4/5", "a\nb"]
)
def test_no_path_leads_out_of_the_folder(path):
    with pytest.raises(InvalidInput):
        checked_entries([FileEntry(path, "0" * 64)])
    with pytest.raises(InvalidInput):
        entries_from_sums(f"{'0' * 64}  {path}\n" if path else "nonsense\n")


def test_a_box_gives_only_what_it_serves_and_only_to_boxes(box):
    with pytest.raises(ModelNotFound):
        source_of(box, "other", TOKEN).entries()
    with pytest.raises(Unauthorized):
        source_of(box, "relu", "lx_another-token-00").entries()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s4://b", "a model can't be pulled from s4://; a box is HOST:PORT"),
        ("memory://b", "a model can't be pulled from memory://"),
        ("zip://a.zip::https://b", "without ::"),
        ("https://b/c?key=secret", "without \\?"),
        ("/srv/models", "a folder here is like file:///srv/models"),
        ("./models", "a folder here is like file:///.*/models"),
    ],
)
def test_what_is_no_place_is_named_with_what_would_be(url, said):
    with pytest.raises(InvalidInput, match=said):
        source_of(url, "relu", None)


def test_a_package_that_is_wanting_is_named(monkeypatch):
    def missing(*_args: object, **_options: object) -> None:
        raise ImportError("No module named 's3fs'")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(InvalidInput, match="isn't installed: Install s3fs to access S3"):
        source_of("s3://models/line-3", "relu", None)


@pytest.mark.parametrize("url", ["file:///nowhere", "http://me:secret@127.0.0.1:9/models"])
def test_a_folder_that_is_not_there_is_said_without_its_secrets(url):
    with pytest.raises(Unavailable) as caught:
        source_of(url, "relu", None).entries()
    assert "/relu/SHA256SUMS" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_box_that_is_not_there_or_is_silent_is_said_plainly(monkeypatch):
    monkeypatch.setattr("scheduler.pulling._PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(Unavailable) as silent:
            source_of(place, "relu", None).entries()
    with pytest.raises(Unavailable) as absent:
        source_of(place, "relu", None).entries()
    assert str(silent.value) == f"tcp://{place}: no answer within 0.1 s"
    assert str(absent.value) == f"tcp://{place}: Connection refused"


def test_a_model_whose_size_is_known_to_be_too_large_is_not_begun(box, root):
    with pytest.raises(InvalidInput, match="larger than 2 MB, the limit"):
        pull(source_of(box, "relu", TOKEN), root, "relu", 2_000_000, fine)
    assert list(root.iterdir()) == []


def test_a_list_of_files_without_end_is_not_read_to_it(shelf, root):
    (shelf / "relu/SHA256SUMS").write_bytes(bytes(3_000_000))
    with pytest.raises(InvalidInput, match="SHA256SUMS is larger"):
        pull(source_of(f"file://{shelf}", "relu", None), root, "relu", LIMIT, fine)


def test_the_command_takes_a_model_that_can_be_served(web, shelf, root):
    (root / "relu").mkdir()
    arguments = ["pull", "relu", "--from", web, "--models", str(root)]
    refused = CliRunner().invoke(command_line(), arguments)
    assert refused.exit_code == 1, refused.output
    done = CliRunner().invoke(command_line(), [*arguments, "--replace"])
    assert done.exit_code == 0, done.output
    assert done.stderr == "", "no progress where nobody looks at it"
    assert files(root / "relu") == files(shelf / "relu")
