"""Whether a server speaks another protocol than that of its url, so that the url is mistaken."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from urllib.parse import urlsplit

PATIENCE_S = 2.0
"""How long an answer is waited for."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""How a client of HTTP/2 begins: a fixed text, and empty settings."""

_SETTINGS = 4
"""The type of a frame with settings, with which a server of HTTP/2 begins."""

_USUAL_PORTS = {"http": 80, "https": 443, "grpc": 443, "grpcs": 443}


async def mixed_up(url: str) -> str:
    """What to write instead, if the server answers to another scheme; else an empty text.

    Nothing secret is sent, and whoever answers is not trusted.

    Args:
        url: The url of a cloud that can't be used.
    """
    split = urlsplit(url)
    scheme, port = split.scheme, split.port or _USUAL_PORTS[split.scheme]
    asked = [_answers(each, split.hostname or "", port) for each in _USUAL_PORTS]
    answers = await asyncio.gather(*asked)
    found = [each for each, answered in zip(_USUAL_PORTS, answers, strict=True) if answered]
    if scheme in found or not found:
        return ""
    return f"it does not speak {scheme}:// but {found[0]}://, so write that in its url"


async def _answers(scheme: str, host: str, port: int) -> bool:
    try:
        return await asyncio.wait_for(_said(scheme, host, port), PATIENCE_S)
    except ssl.SSLError as error:
        return "CERTIFICATE_REQUIRED" in str(error)  # it knows how to ask for one
    except (OSError, EOFError, asyncio.TimeoutError, ValueError):
        return False


async def _said(scheme: str, host: str, port: int) -> bool:
    over_http = scheme.startswith("http")
    context = None
    if scheme.endswith("s"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1" if over_http else "h2"])
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        asking = f"GET /v2/health/live HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        writer.write(asking if over_http else _PREFACE)
        said = await reader.readexactly(len("HTTP/1.1 200") if over_http else 9)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()
    if over_http:  # a port for TLS says 400 to those who come without
        return said.startswith(b"HTTP/1.") and not said.endswith(b" 400")
    return said[3] == _SETTINGS and said[5:] == bytes(4)
