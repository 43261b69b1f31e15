"""A client without a box."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any


class FakeClient:
    """Notes what was sent, and answers when it is told to."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.futures: list[asyncio.Future[Any]] = []
        self.on_submit: Callable[[], None] = lambda: None

    def submit(self, model: str, inputs: Mapping[str, Any], **options: Any) -> Any:
        self.sent.append({"model": model, "inputs": inputs, **options})
        self.futures.append(asyncio.get_running_loop().create_future())
        self.on_submit()
        return self.futures[-1]
