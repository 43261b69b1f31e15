"""What tests of the doors ask, and how."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPConnection
from typing import Any

import numpy as np

from scheduler import Client
from tests.e2e.running_agent import RunningAgent

X = np.array([-1.0, 0.0, 2.0], np.float32)
SLOW = np.ones((1, 1), np.float32)


def said(http: HTTPConnection, method: str, path: str, body: Any = None, **headers: str) -> Any:
    data = json.dumps(body) if isinstance(body, dict | list) else body
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    http.request(method, path, data, named)
    response = http.getresponse()
    return response.status, response.headers, response.read()


def judged(ask: Callable[[], Any]) -> Any:
    """What is said to a request with a hopeless deadline once the box could judge it.

    Where others want the processor, the deadline may be over before that.
    """
    for _ in range(100):
        answer = ask()
        if answer[0] != 504:
            break
    return answer


def request(values: Any, model: str = "relu", **more: Any) -> dict[str, Any]:
    array = np.asarray(values, np.float32)
    tensor = {"name": "x", "shape": list(array.shape), "datatype": "FP32", "data": array.tolist()}
    return {"inputs": [tensor], **more}


def latency_ms(agent: RunningAgent, model: str) -> float:
    with Client(agent.url) as client:
        described = {m["name"]: m for m in client.models()["models"]}[model]
    return float(described["variants"][0]["targets"][0]["latency_ms"]["1"]["p50"])
