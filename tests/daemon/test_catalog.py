"""What a catalog says of its models, to many who ask."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

from structlog.testing import capture_logs

from scheduler.core.offers import Offer
from scheduler.core.signature import STRING, Signature, TensorSpec
from scheduler.core.target_specs import TargetSpec
from scheduler.daemon.catalog import Catalog
from scheduler.daemon.driver import Driver
from scheduler.daemon.status import about
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


class Link:
    """A way to a target that is told of by hand."""

    async def keep_connected(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        """There is nothing to hang up."""


def test_what_a_target_offered_before_it_was_lost_is_told_no_more() -> None:
    async def main() -> None:
        driver = Driver()
        driver.catalog.learn("cpu:0", [card("a"), card("b")], [])
        driver.add_target("cpu:0", cast(Any, Link()))

        def up(*models: str) -> list[str]:
            offers = tuple(Offer(model, "v", "r", {1: (2_000_000,)}) for model in models)
            driver.on_up(TargetSpec("cpu:0", offers))
            return told()

        def told() -> list[str]:
            models = driver.catalog.describe()["models"]
            return [each["name"] for each in models if each["variants"][0]["targets"]]

        assert up("a", "b") == ["a", "b"]
        driver.on_lost("cpu:0", "its process ended")
        assert up("b") == ["b"]
        driver.on_catalog("cpu:0", [card("a")], [("b", "it is another one")])
        await driver.remove_target("cpu:0", "it is gone for good")
        assert told() == []
        assert driver.catalog.describe()["problems"] == []
        assert driver.catalog.digest("cpu:0", "a") == ""
        await driver.close()

    asyncio.run(main())


def test_until_its_progress_is_complete_a_worker_is_expected_to_offer_what_it_has() -> None:
    async def main() -> None:
        driver = Driver()
        driver.add_target("cpu:0", cast(Any, Link()))
        first, second = (Offer(model, "v", "r", {1: (2_000_000,)}) for model in "ab")

        def awaited() -> list[tuple[str, str]]:
            return list(driver.core.targets["cpu:0"].awaited)

        def is_up() -> bool:
            return bool(about(driver.core.targets["cpu:0"], 0)["up"])

        driver.on_catalog("cpu:0", [card("a"), card("b")], [])
        assert awaited() == [("a", "v"), ("b", "v")]
        assert not is_up()
        driver.on_offer("cpu:0", first)
        assert is_up()
        driver.on_progress("cpu:0", 1, 2, "a/v")
        assert awaited() == [("b", "v")]
        driver.on_progress("cpu:0", 2, 2, "b/v: it can't be loaded")
        assert awaited() == []
        driver.on_lost("cpu:0", "its process ended")
        driver.on_offer("cpu:0", second)
        assert awaited() == [("a", "v")]
        driver.on_offer("cpu:0", first)
        assert awaited() == []
        driver.on_lost("cpu:0", "its process ended")
        driver.on_catalog("cpu:0", [card("b")], [])  # its successor has no other
        driver.on_offer("cpu:0", second)
        assert awaited() == []
        await driver.close()

    asyncio.run(main())


def test_only_a_device_that_serves_a_model_has_it_added_or_replaced() -> None:
    async def main() -> None:
        driver = Driver()
        for device in ("cpu:0", "cpu:1"):
            driver.add_target(device, cast(Any, Link()))
            driver.on_catalog(device, [card("a")], [])
        driver.on_offer("cpu:0", Offer("a", "v", "r", {1: (2_000_000,)}))
        driver.on_offer("cpu:1", Offer("a", "v", "r", {1: (2_000_000,)}))
        driver.on_catalog("cpu:0", [card("a")], [])

        for digest in ("first", "second"):  # the other device comes first, as it measures nothing
            driver.on_catalog("cpu:0", [card("a"), card("b", digest)], [])
            driver.on_offer("cpu:1", Offer("b", "v", "r", {1: (2_000_000,)}))
            driver.on_catalog("cpu:1", [card("a"), card("b", digest)], [])
        await driver.close()

    with capture_logs() as log:
        asyncio.run(main())
    assert [(entry["event"], entry["target"], entry["model"]) for entry in log] == [
        ("model added", "cpu:1", "b"),
        ("model replaced", "cpu:1", "b"),
    ]


def test_of_a_replaced_model_only_the_new_variants_are_offered() -> None:
    async def main() -> None:
        driver = Driver()
        driver.add_target("cpu:0", cast(Any, Link()))
        driver.on_catalog("cpu:0", [replace(card("a"), variants=("1",))], [])
        driver.on_offer("cpu:0", Offer("a", "1", "r", {1: (2_000_000,)}))

        driver.on_catalog("cpu:0", [replace(card("a", "new"), variants=("2",))], [])
        driver.on_offer("cpu:0", Offer("a", "2", "r", {1: (2_000_000,)}))
        driver.on_withdrawn("cpu:0", [("a", "1")], "replaced")

        assert [key[2] for key in driver.catalog.offers] == ["2"]
        assert [offer.variant for offer in driver.core.targets["cpu:0"].offers["a"]] == ["2"]
        assert driver.catalog.cards["a"].digest == "new"
        driver.on_catalog("cpu:0", [replace(card("a", "new"), variants=("2",))], [])
        await driver.close()

    with capture_logs() as log:
        asyncio.run(main())
    assert [(entry["event"], entry.get("model")) for entry in log] == [("model replaced", "a")]


def test_other_tensors_count_once_no_device_serves_the_former_ones() -> None:
    """A device that serves nothing of a model takes any files for it, and must not speak for it."""
    former, new = card("a"), card("wide", "new")
    new = replace(new, name="a")

    async def main() -> None:
        for told in (("gpu:0", "cpu:0"), ("cpu:0", "gpu:0")):
            catalog = Catalog()
            if told[0] == "gpu:0":
                catalog.learn("cpu:0", [former], [])
            for device in told:  # as after a restart of the scheduler, in any order
                catalog.learn(device, [former if device == "gpu:0" else new], [])
            catalog.add_offer("gpu:0", Offer("a", "v", "r", {1: (2_000_000,)}))
            assert catalog.cards["a"] is former
            revision = catalog.revision
            catalog.add_offer("gpu:0", Offer("a", "v", "r", {1: (1_000_000,)}))
            assert catalog.revision == revision
            catalog.learn("peer", [former], [], own=False)
            catalog.add_offer("peer", Offer("a", "v", "r", {1: (2_000_000,)}))
            catalog.learn("gpu:0", [new], [])
            assert catalog.cards["a"] is new

    asyncio.run(main())


def test_a_device_that_repeats_its_card_takes_no_replacement_back() -> None:
    async def main() -> None:
        catalog = Catalog()
        for device in ("cpu:0", "gpu:0"):
            catalog.learn(device, [card("a")], [])
        catalog.learn("gpu:0", [card("a", "new")], [])
        catalog.learn("cpu:0", [card("a")], [("a", "its file can't be read")])
        assert catalog.cards["a"].digest == "new"
        assert (catalog.digest("cpu:0", "a"), catalog.digest("gpu:0", "a")) == ("d", "new")
        catalog.learn("cpu:0", [card("a", "newer")], [])
        assert catalog.cards["a"].digest == "newer"

    asyncio.run(main())


def test_the_sizes_at_which_inputs_of_any_size_were_measured_are_told() -> None:
    async def main() -> None:
        catalog = Catalog()
        inputs = (
            TensorSpec("image", "float32", (3, None, None)),
            TensorSpec("label", STRING, (None,)),
            TensorSpec("fixed", "int64", (2,)),
        )
        free = replace(card("a"), signature=Signature(inputs, inputs[2:], True))
        catalog.learn("cpu:0", [free, card("b")], [])
        shapes = ((3, 64, 48), (1, 16), ())
        catalog.add_offer("cpu:0", Offer("a", "v", "r", {1: (1,)}, item_shapes=shapes))
        catalog.add_offer("cpu:0", Offer("b", "v", "r", {1: (1,)}))
        told = {
            model["name"]: model["variants"][0]["targets"][0]["measured_shapes"]
            for model in catalog.describe()["models"]
        }
        assert told == {"a": {"image": [3, 64, 48], "label": [1]}, "b": {}}

    asyncio.run(main())
