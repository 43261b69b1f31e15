"""A collector of OpenTelemetry traces, as far as tests need one."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """Listens on a port of its own and keeps all spans.

    Attributes:
        status: What it answers with.
        taken: All spans so far, each with the attributes of its box.
        url: Its address.
    """

    def __init__(self, port: int = 0) -> None:
        self.status = 200
        self.taken: list[tuple[dict[str, str], Span]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                if collector.status == 200 and self.path == "/v1/traces":
                    collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for group in request.resource_spans:
            box = {each.key: each.value.string_value for each in group.resource.attributes}
            for scope in group.scope_spans:
                self.taken += [(box, span) for span in scope.spans]

    @property
    def spans(self) -> list[Span]:
        """All spans so far."""
        return [span for _, span in self.taken]

    def of_box(self, name: str) -> list[Span]:
        """The spans of a box."""
        return [span for box, span in self.taken if box["service.instance.id"] == name]


def told(span: Span) -> dict[str, Any]:
    """A span's attributes."""
    kinds = ("string_value", "int_value", "double_value", "bool_value")
    return {
        each.key: next(getattr(each.value, kind) for kind in kinds if each.value.HasField(kind))
        for each in span.attributes
    }
