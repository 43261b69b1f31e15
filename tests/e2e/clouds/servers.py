"""The servers of the suite, each as its users would start it."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
import trustme

from benchmarks.clouds import OtherCloud, interpreter
from benchmarks.ports import free_port
from scheduler.tenants import new_token
from tests.e2e.clouds.models import make_repository
from tests.e2e.running_agent import RunningAgent, command, seen
from tests.e2e.running_cloud import RunningCloud

QUEUE = 6
"""Requests that wait at a server at most, where it can be told so; as in `triton_server.py`."""

BACK_S = 60.0


class Server(Protocol):
    """One server.

    Attributes:
        token: The file of the token that it asks for; None where it asks for none.
        ca: Who signed its certificate; None where it has none.
        variant: What it calls what runs `digits`.
        without: What it does not do, by test, and why.
    """

    token: Path | None
    ca: Path | None
    variant: str
    without: dict[str, str]

    def url(self, scheme: str) -> str:
        """Where it is, by `grpc`, `http`, `grpcs` or `https`."""

    def start(self) -> None:
        """Returns once it serves."""

    def kill(self) -> None:
        """Ends it without a word."""

    def stop(self) -> None:
        """Ends it for good."""


class Certificate:
    """The files of a certificate for `localhost`."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert("localhost")
        self.ca, self.cert, self.key = (folder / f"{name}.pem" for name in ("ca", "cert", "key"))
        authority.cert_pem.write_to_path(self.ca)
        self.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(self.key)
        self.key.chmod(0o600)


def write_token(path: Path) -> Path:
    path.touch(0o600)
    path.write_text(new_token())
    return path


class LaxityServer:
    """Another box: its doors, on ports that stay its own."""

    variant = "small"

    def __init__(self, folder: Path) -> None:
        make_repository(folder / "models")
        self.without: dict[str, str] = {}
        certificate = Certificate(folder)
        self.ca: Path | None = certificate.ca
        self.token: Path | None = write_token(folder / "token")
        self._ports = {scheme: free_port() for scheme in ("grpc", "http", "grpcs", "https")}
        plain, secure = (
            {scheme: f"{before}localhost:{self._ports[scheme + s]}" for scheme in ("grpc", "http")}
            for before, s in (("", ""), ("tls://", "s"))
        )
        self._folder = folder
        self._settings: dict[str, Any] = {
            "listen": {scheme: [plain[scheme], secure[scheme]] for scheme in plain},
            "tls": {"cert": str(certificate.cert), "key": str(certificate.key)},
            "token_file": str(self.token),
            "limits": {"queue_requests": QUEUE},
            "profile": {"seconds": 0.3},
        }

    def url(self, scheme: str) -> str:
        return f"{scheme}://localhost:{self._ports[scheme]}"

    def start(self) -> None:
        self._agent = RunningAgent(self._folder, self._folder / "models", **self._settings)

    def kill(self) -> None:
        self._agent.close()

    stop = kill


class ServeServer:
    """Our Ray Serve application, whose proxy is what is killed: Ray Serve starts another."""

    variant = "small"
    ca: Path | None = None

    def __init__(self, folder: Path) -> None:
        make_repository(folder / "models")
        self.without = {"tls": "Ray Serve has no TLS: an ingress before it has"}
        self._cloud = RunningCloud(folder, folder / "models", {"queue_requests": QUEUE})
        self.token: Path | None = folder / "token"

    def url(self, scheme: str) -> str:
        if scheme != "http":
            pytest.skip("`laxity cloud up` offers HTTP")
        return f"http://127.0.0.1:{self._cloud.port}"

    def start(self) -> None:
        if not self._cloud.processes():
            done = self._cloud.laxity("up", "--detach")
            assert done.returncode == 0, done.stderr
        end_s = time.monotonic() + BACK_S
        while time.monotonic() < end_s:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._cloud.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("Ray Serve's proxy did not come back")

    def kill(self) -> None:
        (proxy,) = seen(self._cloud.run, lambda process: "ProxyActor" in command(process))
        proxy.send_signal(signal.SIGKILL)
        proxy.wait(BACK_S)

    def stop(self) -> None:
        self._cloud.laxity("down")
        self._cloud.close()


class OtherServer:
    """Somebody else's."""

    token: Path | None = None
    ca: Path | None = None

    def __init__(
        self, name: str, folder: Path, variant: str, without: dict[str, str], tls: bool = False
    ) -> None:
        if interpreter(name) is None:
            pytest.skip(f"no Python has {name}: `make clouds` makes one, and `make test-clouds`")
        self.variant, self.without = variant, without
        files = make_repository(folder / "models")
        models = [{"name": model, "path": str(file)} for model, file in files.items()]
        pair = None
        if tls:
            certificate = Certificate(folder)
            self.ca, pair = certificate.ca, (certificate.cert, certificate.key)
        self._cloud = OtherCloud(name, folder, models, pair=pair)
        self.start, self.kill, self.stop = self._cloud.start, self._cloud.kill, self._cloud.stop

    def url(self, scheme: str) -> str:
        port = getattr(self._cloud, scheme[:4]).rpartition(":")[2]
        return f"{scheme}://localhost:{port}"


def triton(folder: Path) -> Server:
    return OtherServer("triton", folder, "1", {"token": "Triton asks for no token"})


def triton_with_tls(folder: Path) -> Server:
    return OtherServer("triton", folder, "1", {}, tls=True)


def mlserver(folder: Path) -> Server:
    lacks = {
        "token": "MLServer asks for no token",
        "tls": "MLServer has no TLS",
        "overload": "MLServer refuses nothing: it has no limit of what may wait",
    }
    return OtherServer("mlserver", folder, "remote", lacks)


KINDS: dict[str, Callable[[Path], Server]] = {
    "laxity": LaxityServer,
    "serve": ServeServer,
    "triton": triton,
    "mlserver": mlserver,
}
