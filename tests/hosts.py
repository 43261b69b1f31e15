"""Hosts on one machine: network namespaces, each with a cable to the same switch.

It takes the commands `ip` and `tc` (iproute2), `unshare` and `nsenter` (util-linux), and root or
user namespaces. A namespace lives as long as a process that this one holds by a pipe: nothing is
left when a test is killed, and nothing has a name outside that could be taken.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from typing import Any

_TOOLS = ("ip", "tc", "unshare", "nsenter")
_HOLD = ("sh", "-c", "echo held; exec cat >/dev/null")
_NETWORK = "10.77.0"
_BURST_BYTES = 32_000
_QUEUE = "100ms"


def why_no_hosts() -> str | None:
    """Why there can be no hosts on this machine; None if there can."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"no hosts without {', '.join(missing)} (iproute2 and util-linux)"
    try:
        Site(1).close()
    except HostsNotPermitted as error:
        return f"no hosts here: {error}"
    return None


class HostsNotPermitted(Exception):
    """The kernel refuses namespaces or links to this user."""


class Site:
    """Hosts on one switch. Each has an address that the others reach, and its own loopback.

    Args:
        count: How many, 1 to 200.

    Attributes:
        hosts: They, in order.

    Raises:
        HostsNotPermitted: As it says.
    """

    def __init__(self, count: int) -> None:
        self._held = ExitStack()
        try:
            self._switch = self._namespace()
            _do(*self._switch, "ip", "link", "add", "switch", "type", "bridge")
            _do(*self._switch, "ip", "link", "set", "switch", "up")
            self.hosts = [self._host(number) for number in range(1, count + 1)]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends it; what still runs in a host has loopback alone."""
        self._held.close()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _host(self, number: int) -> Host:
        inside = self._namespace(*self._switch)
        cable = ("type", "veth", "peer", "name", "eth0", "netns", inside[2])
        port = f"port{number}"
        _do(*self._switch, "ip", "link", "add", port, *cable)
        _do(*self._switch, "ip", "link", "set", port, "master", "switch", "up")
        address = f"{_NETWORK}.{number}"
        _do(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _do(*inside, "ip", "link", "set", link, "up")
        return Host(address, inside, self._switch, port)

    def _namespace(self, *beside: str) -> tuple[str, ...]:
        """A new one; the words that run a command within it. Its process is the third of them."""
        # Who isn't root is so in a user namespace, the same for all of a site.
        as_root = os.geteuid() == 0
        new = ("unshare", "--net") if as_root or beside else ("unshare", "-Ur", "--net")
        holder = self._held.enter_context(
            subprocess.Popen(
                [*beside, *new, *_HOLD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        assert holder.stdout is not None
        assert holder.stderr is not None
        if not holder.stdout.readline():
            raise HostsNotPermitted(holder.stderr.read().strip())
        enter = ("nsenter", "--target", str(holder.pid), "--net")
        return enter if as_root else (*enter, "--user", "--preserve-credentials")


class Host:
    """A host of a site.

    Attributes:
        address: Its own in the site's network.
    """

    def __init__(
        self, address: str, inside: tuple[str, ...], switch: tuple[str, ...], port: str
    ) -> None:
        self.address = address
        self._inside = inside
        self._switch = switch
        self._port = port

    def command(self, *words: str) -> list[str]:
        """The words that run a command on this host; the process is that command's own."""
        return [*self._inside, *words]

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs a command on this host to its end, whose status must be 0."""
        options = {"check": True, "text": True, "capture_output": True, **options}
        return subprocess.run(self.command(*words), **options)

    def cut(self) -> None:
        """Pulls its cable out of the switch: what is sent is lost, and nobody is told."""
        _do(*self._switch, "ip", "link", "set", self._port, "down")

    def restore(self) -> None:
        """Puts it back."""
        _do(*self._switch, "ip", "link", "set", self._port, "up")

    def limit(self, mbps: float) -> None:
        """Lets so many 10^6 bits per second through its cable in each direction.

        Raises:
            HostsNotPermitted: The kernel has no token bucket filter (sch_tbf).
        """
        bucket = ("tbf", "rate", f"{mbps}mbit", "burst", str(_BURST_BYTES), "latency", _QUEUE)
        _do(*self._inside, "tc", "qdisc", "replace", "dev", "eth0", "root", *bucket)
        _do(*self._switch, "tc", "qdisc", "replace", "dev", self._port, "root", *bucket)


def _do(*words: str) -> None:
    done = subprocess.run(words, text=True, capture_output=True)
    if done.returncode:
        raise HostsNotPermitted(f"{' '.join(words)}: {done.stderr.strip()}")
