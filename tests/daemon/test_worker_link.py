from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import structlog

from scheduler.core.commands import Dispatch
from scheduler.daemon import worker_link
from scheduler.daemon.link import LinkListener
from scheduler.daemon.shared_bodies import SharedBodies
from scheduler.daemon.silence import why_silent
from scheduler.daemon.worker_link import WorkerLink
from scheduler.shared_pages import LEAST_BYTES
from scheduler.wire import FrameLimits, FrameReader, encode, pack_tensors
from tests.waiting import PATIENCE_S, eventually
from workers.kernel_files import standing

TELEMETRY = encode({"t": "telemetry", "reading": {}})[0]


class Heard:
    """What the link says of its worker."""

    link: WorkerLink

    def __init__(self):
        self.words: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()

    def on_telemetry(self, *told):
        self.words.put_nowait(("telemetry", *told))

    def on_withdrawn(self, *told):
        self.words.put_nowait(("withdrawn", *told))

    def on_failed(self, *told):
        self.words.put_nowait(("failed", *told))

    def on_lost(self, *told):
        self.words.put_nowait(("lost", *told))

    async def next(self):
        return await asyncio.wait_for(self.words.get(), PATIENCE_S)


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Runs a play with a link, and a worker that says what it is told to."""
    monkeypatch.setattr(worker_link, "_LOOK_S", 0.005)

    def play(acts, shared=None):
        async def main(listener):
            heard = Heard()
            link = WorkerLink("cpu:0", tmp_path / "w", cast(LinkListener, heard), shared)
            heard.link = link
            connecting = asyncio.ensure_future(link.keep_connected())
            await acts(partial(asyncio.to_thread, listener.accept), heard)
            connecting.cancel()
            await asyncio.wait((connecting,))
            link.close()
            await asyncio.sleep(0)

        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "w"))
            listener.listen(1)
            asyncio.run(main(listener))

    return play


def test_a_worker_that_says_nothing_any_more_is_lost_until_it_does(played):
    async def acts(accept, heard):
        for _ in range(2):
            with (await accept())[0] as worker:
                worker.sendall(TELEMETRY)
                assert await heard.next() == ("telemetry", "cpu:0", {})
                lost, device, reason, blameless = await heard.next()
                assert (lost, device, blameless) == ("lost", "cpu:0", True)
                assert reason.startswith("worker of cpu:0: its process ")
                assert reason.endswith(" says nothing") or " and says nothing; " in reason

    played(acts)


def test_what_a_worker_serves_no_more_is_withdrawn(played):
    async def acts(accept, heard):
        with (await accept())[0] as worker:
            worker.sendall(encode({"t": "withdrawn", "variants": [["m", "1"], ["m", "2"]]})[0])
            withdrawn, device, variants, reason = await heard.next()
            assert (withdrawn, device, variants) == ("withdrawn", "cpu:0", [("m", "1"), ("m", "2")])
            assert reason == "the model's files were replaced"

    played(acts)


def test_a_client_that_left_before_the_worker_had_its_memory_is_no_news(played):
    shared = SharedBodies(LEAST_BYTES)
    gone, here = shared.lend(), shared.lend()
    assert gone is not None
    assert here is not None
    shared.withdraw(gone)

    async def acts(accept, heard):
        with (await accept())[0] as worker, structlog.testing.capture_logs() as logs:
            for number in (gone, here):
                failed = {"t": "not_mapped", "pages": number, "reason": f"no file of {number}"}
                worker.sendall(encode(failed)[0])
            worker.sendall(TELEMETRY)
            await heard.next()
        told = [each["reason"] for each in logs if each["event"] == "worker gets large inputs sent"]
        assert told == [f"no file of {here}"]

    played(acts, shared)
    shared.withdraw(here)


def test_a_process_that_has_no_file_left_connects_when_it_has(played, monkeypatch):
    failures = iter([OSError(errno.EMFILE, "too many open files")])

    class Lacking(socket.socket):
        def __init__(self, *args, **options):
            if "fileno" not in options and (failure := next(failures, None)):
                raise failure
            super().__init__(*args, **options)

    async def acts(accept, heard):
        monkeypatch.setattr(socket, "socket", Lacking)
        with (await asyncio.wait_for(accept(), PATIENCE_S))[0] as worker:
            worker.sendall(TELEMETRY)
            assert await heard.next() == ("telemetry", "cpu:0", {})
        assert next(failures, None) is None

    played(acts)


def test_a_batch_that_is_more_than_a_message_may_have_fails_alone(played, monkeypatch):
    monkeypatch.setattr(worker_link, "LINK_LIMITS", FrameLimits(1000, 200))
    specs, buffers = pack_tensors({"x": np.zeros(16, np.float32)})
    item = SimpleNamespace(specs=specs, body=memoryview(b"".join(buffers)))

    async def acts(accept, heard):
        with (await accept())[0] as worker:
            worker.sendall(TELEMETRY)
            await heard.next()
            heard.link.run(Dispatch(7, "cpu:0", "m", "v", (1, 2, 3, 4), 0, "why"), [item] * 4)
            failed, run_id, reason = await heard.next()
            assert (failed, run_id) == ("failed", 7)
            assert "256 bytes are more than a batch may have (200)" in reason
            heard.link.run(Dispatch(8, "cpu:0", "m", "v", (1, 2, 3), 0, "why"), [item] * 3)
            reader = FrameReader(FrameLimits())
            while not (frames := reader.advance(worker.recv_into(reader.get_buffer()))):
                pass
            assert [header["id"] for header, _ in frames] == [8]

    played(acts)


@pytest.fixture
def start():
    """Starts a child, which is ready once it has said something."""
    children = []

    def run(work):
        code = f"import time; print(flush=True)\n{work}"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        children.append(child)
        assert child.stdout is not None
        child.stdout.readline()
        return child.pid

    yield run
    for child in children:
        child.kill()
        child.communicate()


def test_a_worker_is_told_apart_that_is_stopped_computes_or_waits(start):
    waiting, computing, stopped = (
        start("time.sleep(60)"),
        start("while True: 1"),
        start("time.sleep(60)"),
    )
    os.kill(stopped, signal.SIGSTOP)

    def stands(pid):
        found = standing(pid)
        assert found is not None
        return found

    def said(pid):
        return why_silent(pid, before[pid], stands(pid))

    eventually(lambda: stands(stopped).state == "T")
    eventually(lambda: stands(waiting).state == "S")
    before = {pid: stands(pid) for pid in (waiting, computing, stopped)}
    eventually(lambda: stands(computing).cpu_ticks > before[computing].cpu_ticks)
    assert said(stopped) == f"its process is stopped; kill -CONT {stopped} lets it go on"
    assert said(computing).startswith("its process computes and says nothing; a library")
    assert said(waiting) == "its process waits for something, and says nothing"
    assert why_silent(0, None, standing(0)) == "its process says nothing; is it stopped?"


def test_a_worker_is_connected_once_it_speaks_not_while_its_process_ends(played):
    async def acts(accept, heard):
        (await accept())[0].close()  # as the kernel does, before it closes where that listened
        assert (await heard.next())[0] == "lost"
        with (await accept())[0] as worker:
            worker.sendall(TELEMETRY)
            assert (await heard.next())[0] == "telemetry"
            worker.sendall(TELEMETRY)
            assert (await heard.next())[0] == "telemetry"

    with structlog.testing.capture_logs() as said:
        played(acts)
    connected = {"event": "worker connected", "device": "cpu:0", "log_level": "info"}
    assert said == [connected]


@pytest.mark.parametrize("leaves_unread", [False, True])
def test_one_that_ends_is_lost_for_that(played, leaves_unread):
    async def acts(accept, heard):
        peer = (await accept())[0]
        if leaves_unread:  # the connection is reset then, not closed
            heard.link.cancel(7)
        peer.close()
        assert await heard.next() == ("lost", "cpu:0", "worker of cpu:0: its process ended", False)

    played(acts)
