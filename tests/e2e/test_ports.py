"""What a box with default settings shows to other machines: nothing."""

from __future__ import annotations

import ipaddress

import psutil

from tests.e2e.running_agent import RunningAgent


def test_no_process_listens_beyond_this_machine(shared_agent: RunningAgent) -> None:
    pids = {process.pid for process in shared_agent.processes()}
    listening = [
        (psutil.Process(found.pid).name(), *found.laddr)
        for found in psutil.net_connections("inet")
        if found.status == psutil.CONN_LISTEN and found.pid in pids
    ]
    assert len(listening) > 5  # Ray's own, HTTP and gRPC
    beyond = [entry for entry in listening if not _is_local(entry[1])]
    assert beyond == []


def _is_local(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
