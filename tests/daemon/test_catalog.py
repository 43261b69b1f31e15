"""What a catalog says of its models, to many who ask."""

from __future__ import annotations

import asyncio
from typing import Any

from scheduler.core.offers import Offer
from scheduler.daemon.catalog import Catalog
from tests.neighbours.boxes import card


def test_what_is_described_is_worked_out_once_until_something_changes() -> None:
    def variants(model: dict[str, Any]) -> dict[str, list[str]]:
        return {v["name"]: [t["target"] for t in v["targets"]] for v in model["variants"]}

    async def main() -> None:
        catalog = Catalog()
        catalog.learn("cpu:0", [card("b"), card("a")], [("c", "no weights")])
        first = catalog.describe()
        assert catalog.describe() is first
        assert [model["name"] for model in first["models"]] == ["a", "b"]
        assert first["problems"] == [{"device": "cpu:0", "model": "c", "reason": "no weights"}]
        for target, variant in (("gpu:0", "v"), ("cpu:0", "v"), ("far", "w")):
            catalog.add_offer(target, Offer("a", variant, "r", {1: (2_000_000,)}))
        a, b = catalog.describe()["models"]
        assert (variants(a), variants(b)) == ({"v": ["cpu:0", "gpu:0"], "w": ["far"]}, {"v": []})
        catalog.learn("gpu:0", [card("d")], [])
        assert [model["name"] for model in catalog.describe()["models"]] == ["a", "b", "d"]

    asyncio.run(main())
