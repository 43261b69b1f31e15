"""The OpenAPI document against the door: every path, and thousands of made-up requests.

`LAXITY_API_CASES=2000 pytest tests/e2e/shared_agent/test_openapi.py` asks schemathesis (it is in
the extra `bench`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from scheduler.ingress.http.routes import _INFER, _INFER_VERSION, _PATHS
from tests.e2e.running_agent import RunningAgent

CASES = int(os.environ.get("LAXITY_API_CASES", "0"))


@pytest.fixture(scope="module")
def document(shared_agent: RunningAgent) -> Any:
    http = HTTPConnection(shared_agent.address("http"), timeout=30)
    http.request("GET", "/openapi.json")
    found = json.loads(http.getresponse().read())
    http.close()
    return found


def test_the_document_names_every_path_and_no_other(document: Any) -> None:
    served = {f"/{path}": set(methods) for path, methods in _PATHS.items()}
    served |= {"/" + "/".join(parts): {"POST"} for parts in (_INFER, _INFER_VERSION)}
    described = {
        path: {method.upper() for method in methods} for path, methods in document["paths"].items()
    }
    assert described == served


def test_every_reference_of_the_document_leads_somewhere(document: Any) -> None:
    def references(node: Any) -> Any:
        if isinstance(node, dict):
            yield from [node["$ref"]] if "$ref" in node else []
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    for reference in set(references(document)):
        found = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not CASES, reason="LAXITY_API_CASES is not set")
def test_made_up_requests_get_documented_answers(
    shared_agent: RunningAgent, tmp_path: Path
) -> None:
    assert find_spec("schemathesis") is not None, "install the extra bench"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.e2e.made_up_requests"),
            *(f"http://{shared_agent.address('http')}", str(CASES)),
        ],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
