"""The models of a box, as its workers describe them, and the check of a request against them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from operator import itemgetter
from typing import Any

from scheduler.core.names import or_which
from scheduler.core.offers import Offer
from scheduler.core.requests import RequestClass
from scheduler.core.signature import (
    STRING,
    Signature,
    TensorSpec,
    element_bytes,
    fits,
    shape_text,
    travels_as,
)
from scheduler.errors import InvalidInput, ModelNotFound, Unavailable
from workers.link import ModelCard


class Catalog:
    """The models that can be requested, whether or not a target is ready for them.

    Attributes:
        cards: The models, by name.
        offers: What targets can run, by target, model and variant.
        problems: By target, the models that can't be served, and why.
        revision: Changes whenever a model may have changed.
        spoken: Set when the first models are known.
    """

    def __init__(self) -> None:
        """Empty until a worker has described its models."""
        self.cards: dict[str, ModelCard] = {}
        self.offers: dict[tuple[str, str, str], Offer] = {}
        self.problems: dict[str, list[Any]] = {}
        self.revision = 0
        self._described: dict[str, Any] | None = None
        self._told: dict[str, dict[str, ModelCard]] = {}
        self._own: set[str] = set()
        self._announced: set[str] = set()
        self._devices: set[str] = set()
        self.spoken = asyncio.Event()
        self._news = asyncio.Event()

    async def heard(self, targets: Iterable[str]) -> None:
        """Waits until each of these targets has described its repository."""
        awaited = set(targets)
        while not awaited <= self.problems.keys():
            self._news.clear()
            await self._news.wait()

    def news(self, device_id: str, cards: list[ModelCard], is_up: bool) -> list[tuple[str, str]]:
        """What is new in a device's description of its repository, which is not learned yet.

        The description also has models that the device may not serve (`devices[].models`).

        Returns:
            Events to log, each with the model.
        """
        if not is_up:  # they are those of the start
            self._announced.update(card.name for card in cards)
            return []
        served = {model for target, model, _ in self.offers if target == device_id}
        cards = [card for card in cards if card.name in served]
        added = [card for card in cards if card.name not in self._announced]
        known = [(card, self.digest(device_id, card.name)) for card in cards if card not in added]
        self._announced |= served
        replaced = [card for card, before in known if before not in ("", card.digest)]
        return [
            *(("model added", card.name) for card in added),
            *(("model replaced", card.name) for card in replaced),
        ]

    def learn(
        self, device_id: str, cards: list[ModelCard], problems: list[Any], own: bool = True
    ) -> None:
        """Records a target's description of its repository; see `LinkListener.on_catalog`."""
        before = self._told.get(device_id, {})
        self._told[device_id] = {card.name: card for card in cards}
        if own:
            self._own.update(card.name for card in cards)
            self._devices.add(device_id)
            # A device may repeat its old card of a model that another device has replaced already.
            cards = [
                card
                for card in cards
                if before.get(card.name) != card and not self._is_served_otherwise(device_id, card)
            ]
        self.cards.update((c.name, c) for c in cards if own or c.name not in self._own)
        self.problems[device_id] = problems
        self.revision += 1
        self._described = None
        self._news.set()
        if self.cards:
            self.spoken.set()

    def _is_served_otherwise(self, device_id: str, card: ModelCard) -> bool:
        """Whether another device of this box serves a model of that name with other tensors.

        A device that serves no variant of a model takes other files for it, while those that do
        keep the old ones in use.
        """
        known = self.cards.get(card.name, card)
        return known.signature != card.signature and any(
            target != device_id
            and self._told.get(target, {}).get(model, card).signature == known.signature
            for target, model, _ in self.offers
            if model == card.name and target in self._devices
        )

    def allows(self, box: str, card: ModelCard, is_up: Callable[[str], bool]) -> bool:
        """Whether a model of another box may go by its name here.

        It may not if it differs from this box's own of that name, or from that of a third box that
        is up.
        """
        known = self.cards.get(card.name)
        if known is None or known is card:
            return True
        if (known.digest, known.signature) == (card.digest, card.signature):
            return True
        holders = [target for target, models in self._told.items() if card.name in models]
        return card.name not in self._own and not any(t != box and is_up(t) for t in holders)

    def digest(self, target_id: str, model: str) -> str:
        """The digest of the files that a target serves as a model; empty if it is unknown."""
        card = self._told.get(target_id, {}).get(model)
        return "" if card is None else card.digest

    def variants(self, target_id: str) -> list[tuple[str, str]]:
        """The models and variants in the repository of a target."""
        cards = self._told.get(target_id, {}).values()
        return [(card.name, variant) for card in cards for variant in card.variants]

    def add_offer(self, device_id: str, offer: Offer) -> None:
        """Records a variant that a target can run."""
        card = self._told.get(device_id, {}).get(offer.model)
        if (
            card is not None
            and device_id in self._devices
            and card.signature != self.cards[card.name].signature
            and not self._is_served_otherwise(device_id, card)
        ):
            self.cards[card.name] = card
            self.revision += 1
        self.offers[device_id, offer.model, offer.variant] = offer
        self._described = None

    def withdraw(self, device_id: str, variants: Iterable[tuple[str, str]]) -> None:
        """Forgets offers of a target that it has withdrawn."""
        for model, variant in variants:
            self.offers.pop((device_id, model, variant), None)
        self._described = None

    def forget_offers(self, device_id: str) -> None:
        """Forgets what a target could run: it is gone, or another has taken its place."""
        for key in [key for key in self.offers if key[0] == device_id]:
            del self.offers[key]
        self._described = None

    def forget(self, target_id: str) -> None:
        """Forgets a target that is removed; its models stay known, as others may have them."""
        self.forget_offers(target_id)
        self.problems.pop(target_id, None)
        self._told.pop(target_id, None)
        self._devices.discard(target_id)

    def __contains__(self, model: object) -> bool:
        """Whether there is a model of this name, served or not."""
        return model in self.cards or any(name == model for name, _ in self._unserved())

    def _unserved(self) -> Iterable[tuple[str, str]]:
        """The models that can't be served by some target, and why."""
        return chain.from_iterable(self.problems.values())

    def card(self, model: Any, variant: Any = None) -> ModelCard:
        """The card of a model.

        Raises:
            ModelNotFound: There is no such model or variant, and the error names the nearest one;
                or the model can't be served, and the error says why.
            Unavailable: No worker has described its models yet.
            InvalidInput: A name is not a string.
        """
        if not isinstance(model, str) or not (variant is None or isinstance(variant, str)):
            raise InvalidInput(f"model and variant are strings, not {model!r} and {variant!r}")
        card = self.cards.get(model)
        if card is None:
            if not self.problems:
                raise Unavailable("the box is still reading its models; try again in a moment")
            raise ModelNotFound.among(self._unserved(), model, or_which(model, self.cards))
        if variant is not None and variant not in card.variants:
            variants = _variants(
                card, [(t, o) for (t, m, _), o in self.offers.items() if m == model]
            )
            if variant not in variants:
                meant = or_which(variant, variants)
                raise ModelNotFound(f"variant {variant!r} is not in model {model!r}{meant}")
        return card

    def describe(self) -> dict[str, Any]:
        """All models with signatures, variants and measured latency, for people and programs.

        Callers must not modify the result: it is cached and shared until something changes.
        """
        if self._described is None:
            self._described = self._worked_out()
        return self._described

    def _worked_out(self) -> dict[str, Any]:
        offers: defaultdict[str, list[tuple[str, Offer]]] = defaultdict(list)
        for (device, model, _), offer in sorted(self.offers.items(), key=itemgetter(0)):
            offers[model].append((device, offer))
        return {
            "models": [
                self._describe(card, offers[name]) for name, card in sorted(self.cards.items())
            ],
            "problems": [
                {"device": device, "model": model, "reason": reason}
                for device, problems in sorted(self.problems.items())
                for model, reason in problems
            ],
        }

    def _describe(self, card: ModelCard, offers: list[tuple[str, Offer]]) -> dict[str, Any]:
        padded = {each.input: {"padded_to": list(each.to)} for each in card.pad}
        return {
            "name": card.name,
            "description": card.description,
            "batched": card.signature.batched,
            "max_batch": card.max_batch,
            "inputs": [
                {**_describe_spec(spec), **padded.get(spec.name, {})}
                for spec in card.signature.inputs
            ],
            "outputs": [_describe_spec(spec) for spec in card.signature.outputs],
            "variants": [
                {
                    "name": variant,
                    "targets": [
                        _describe_offer(device, offer, card.signature)
                        for device, offer in offers
                        if offer.variant == variant
                    ],
                }
                for variant in _variants(card, offers)
            ],
        }


def _variants(card: ModelCard, offers: Iterable[tuple[str, Offer]]) -> list[str]:
    """The variants of the repository, then those that only targets beyond the box have."""
    return list(dict.fromkeys((*card.variants, *sorted({offer.variant for _, offer in offers}))))


def _describe_spec(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.shape)}


def _describe_offer(device: str, offer: Offer, signature: Signature) -> dict[str, Any]:
    shapes = zip(signature.inputs, offer.item_shapes, strict=False)  # it may have been replaced
    return {
        "target": device,
        "runtime": offer.runtime,
        "accuracy": offer.accuracy,
        "measured_shapes": {
            spec.name: list(shape[: len(spec.shape)]) for spec, shape in shapes if shape
        },
        "energy_uj": {str(batch): energy for batch, energy in sorted(offer.energy_uj.items())},
        "latency_ms": {
            str(batch): {
                "p50": samples[len(samples) // 2] / 1e6,
                "p95": samples[int(0.95 * len(samples))] / 1e6,
            }
            for batch, samples in sorted(offer.latency_ns.items())
        },
    }


def checked_class(card: ModelCard, variant: str | None, specs: Any) -> tuple[RequestClass, bool]:
    """The class of a request, from the tensor specs in its message.

    Args:
        card: The requested model.
        variant: The only acceptable variant, or None.
        specs: `[name, dtype, shape]` per tensor, already checked to be well formed.

    Returns:
        The class, and whether the tensors had a leading batch dimension of 1, which the answer
        then has too.

    Raises:
        InvalidInput: Names, dtypes or shapes do not match the model's.
    """
    signature = card.signature
    given = {name: (dtype, shape) for name, dtype, shape in specs}
    wanted = [spec.name for spec in signature.inputs]
    if sorted(given) != sorted(wanted):
        raise InvalidInput(
            f"model {card.name!r} takes {', '.join(wanted) or 'no inputs'}, "
            f"the request has {', '.join(given) or 'none'}"
        )
    shapes = []
    batched = set()
    for spec in signature.inputs:
        dtype, shape = given[spec.name]
        if not travels_as(spec.dtype, dtype):
            raise InvalidInput(
                f"input {spec.name!r} of model {card.name!r} is {spec.dtype}, not {dtype}"
            )
        shape, has_batch = _item_shape(card, spec, signature, tuple(shape))
        shapes.append((*shape, _length(dtype)) if spec.dtype == STRING else shape)
        batched.add(has_batch)
    if len(batched) > 1:
        raise InvalidInput("either all inputs have a leading batch dimension of 1, or none")
    return RequestClass(card.name, variant, tuple(shapes)), True in batched


def misfit(card: ModelCard, specs: Any) -> str | None:
    """Why an item's tensors are not those of a model, whose files may have changed since; or None.

    An item has no batch dimension, and its tensors are in the signature's order.
    """
    try:
        _, has_batch = checked_class(card, None, specs)
    except InvalidInput as error:
        return str(error)
    in_order = [name for name, _, _ in specs] == [spec.name for spec in card.signature.inputs]
    return "its inputs differ in batch or order" if has_batch or not in_order else None


def _length(dtype: str) -> int:
    """The greatest text length of a class: 16, 64, 256 and so on.

    The texts of a batch are padded to the longest. The steps keep long texts from sharing a batch
    with very short ones, which would fill the memory with padding.
    """
    size, most = element_bytes(dtype) or 0, 16
    while most < size:
        most *= 4
    return most


def _item_shape(
    card: ModelCard, spec: TensorSpec, signature: Signature, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    if fits(shape, spec.shape):
        return shape, False
    if signature.batched and shape and fits(shape[1:], spec.shape):
        if shape[0] == 1:
            return shape[1:], True
        raise InvalidInput(
            f"input {spec.name!r} holds {shape[0]} items; a request is one item of shape "
            f"{shape_text(spec.shape)} (Client.map sends many, which share batches by themselves)"
        )
    raise InvalidInput(
        f"input {spec.name!r} of model {card.name!r} has shape {shape_text(spec.shape)}, "
        f"not {shape_text(shape)}"
    )
