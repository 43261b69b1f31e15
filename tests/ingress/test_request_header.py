"""What a request's header comes to, for a door that has seen the like of it before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from scheduler.core.signature import Signature, TensorSpec
from scheduler.daemon.catalog import Catalog
from scheduler.errors import InvalidInput
from scheduler.ingress.request_header import RequestShapes
from tests.neighbours.boxes import card


def test_a_request_is_checked_against_the_model_as_it_is() -> None:
    """A worker that comes back has read its repository anew."""

    def model(shape: tuple[int, ...], name: str = "x", batched: bool = True) -> Signature:
        spec = TensorSpec(name, "float32", shape)
        return Signature((spec,), (spec,), batched)

    async def main() -> None:
        catalog = Catalog()
        shapes = RequestShapes(catalog)

        def of(signature: Signature) -> bool:
            catalog.learn("cpu:0", [replace(card("m"), signature=signature)], [])
            return shapes.of({"model": "m", "in": [["x", "float32", [1, 4]]]}).has_batch

        assert of(model((4,)))
        assert not of(model((1, 4)))
        with pytest.raises(InvalidInput, match="model 'm' takes other, the request has x"):
            of(model((4,), "other"))
        assert of(model((4,)))
        with pytest.raises(InvalidInput, match=r"has shape \[4\], not \[1, 4\]"):
            of(model((4,), batched=False))

    asyncio.run(main())
