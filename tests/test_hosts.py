"""The hosts that other tests run on: they reach each other, until their cables are pulled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.hosts import Host, HostsNotPermitted, Site
from tests.waiting import PATIENCE_S, eventually

_DOOR = """
import socket, sys
door = socket.create_server((sys.argv[1], 4000))
print("open", flush=True)
while True:
    peer, _ = door.accept()
    with peer:
        size = 0
        while data := peer.recv(1 << 16):
            size += len(data)
        peer.sendall(str(size).encode())
"""
_CALLER = """
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], 4000), float(sys.argv[3])) as peer:
    peer.sendall(bytes(int(sys.argv[2])))
    peer.shutdown(socket.SHUT_WR)
    assert int(peer.recv(100)) == int(sys.argv[2])
print(time.monotonic() - began)
"""


@pytest.fixture(scope="module")
def site(new_site: Callable[[int], Site]) -> Iterator[Site]:
    with new_site(2) as made:
        yield made


@pytest.fixture
def door(site: Site) -> Iterator[Host]:
    """The first host, with an open door."""
    host = site.hosts[0]
    command = host.command(sys.executable, "-c", _DOOR, host.address)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield host
        process.kill()


def seconds(site: Site, size: int = 1, patience_s: float = PATIENCE_S) -> float:
    """How long the second host takes to send so much to the first one's door."""
    words = sys.executable, "-c", _CALLER, site.hosts[0].address, str(size), str(patience_s)
    return float(site.hosts[1].run(*words).stdout)


def test_hosts_reach_each_other(site, door):
    assert seconds(site) < PATIENCE_S


def test_each_has_a_loopback_of_its_own(site):
    # They take the same port.
    commands = [host.command(sys.executable, "-c", _DOOR, "127.0.0.1") for host in site.hosts]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    for process in processes:
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            process.kill()


@pytest.mark.parametrize("end", [0, 1])
def test_a_cut_cable_carries_nothing_until_it_is_back(site, door, end):
    seconds(site)
    site.hosts[end].cut()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        seconds(site, patience_s=0.5)
    assert "timed out" in failed.value.stderr or "No route" in failed.value.stderr
    site.hosts[end].restore()
    seconds(site)


def test_a_limit_is_kept(new_site):
    with new_site(2) as site:
        try:
            site.hosts[1].limit(20)
        except HostsNotPermitted as error:
            pytest.skip(f"no limits here: {error}")
        host = site.hosts[0]
        command = host.command(sys.executable, "-c", _DOOR, host.address)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            # 0.4 s at the full rate, less what the bucket lets through at once.
            for _ in range(10):  # a busy machine may hold up one
                took_s = seconds(site, size=1_000_000)
                assert took_s > 0.35
                if took_s < 2:
                    break
            process.kill()
    assert took_s < 2


def test_nothing_is_left_of_a_killed_test(new_site):
    script = "from tests.hosts import *; s = Site(2); print(s._switch[2], flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        holder = int(process.stdout.readline())
        os.kill(holder, 0)
        process.send_signal(signal.SIGKILL)
    eventually(lambda: not os.path.exists(f"/proc/{holder}/ns/net"))
