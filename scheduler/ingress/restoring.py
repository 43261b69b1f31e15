"""Decodes inputs that another box encoded for a slow link, away from the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from scheduler.daemon.catalog import Catalog
from scheduler.encodings.codec import Restoration, accepted, restoration
from scheduler.errors import ExecutionFailed, InvalidInput, LaxityError, Overloaded
from scheduler.wire import Body, Header, Tensors, pack_tensors, unpack_tensors


class Restored(NamedTuple):
    """A message with its inputs decoded.

    Attributes:
        header: The message, with the remaining budget. It is marked exact, because inputs are never
            made smaller twice.
        body: Its tensors.
        took_ns: How long decoding took.
    """

    header: Header
    body: Body
    took_ns: int


_FULL = "requests hold all the memory that there is for tensors"

OnEnd = Callable[["Restored | LaxityError"], None]
CountIn = Callable[[int], Callable[[], None]]


class Restorer:
    """Decodes the inputs of messages.

    Args:
        catalog: The models of the box.
        most_bytes: How large the decoded inputs of one message may be.

    Attributes:
        undone: The names of the encodings that it can decode.
        held_bytes: The memory of the inputs being decoded.
    """

    def __init__(self, catalog: Catalog, most_bytes: int) -> None:
        """Starts with nothing to decode."""
        self.undone = accepted()
        self.held_bytes = 0
        # One thread: senders of images must not take more than one core from the scheduler.
        self._thread = ThreadPoolExecutor(1, "restore")
        self._catalog = catalog
        self._most_bytes = most_bytes

    def begin(
        self, header: Header, body: Body | None, free_bytes: int, count_in: CountIn, on_end: OnEnd
    ) -> Callable[[], None]:
        """Decodes the inputs of an `infer` message in another thread.

        Args:
            header: The message, with `enc`.
            body: Its tensors; None if there was no memory for them.
            free_bytes: The memory available for the decoded inputs.
            count_in: Counts so many bytes against the sender's quota, encoded and decoded.
            on_end: Called once on the event loop, with the decoded message or an error.

        Returns:
            The call that counts the bytes out again.

        Raises:
            InvalidInput: The model's inputs can't be decoded from these.
            ModelNotFound: There is no such model.
            Overloaded: There is no memory left, or the sender exceeds its quota.
        """
        if body is None:
            raise Overloaded(_FULL)
        tensors = unpack_tensors(header.get("in"), body)
        work = self._work(header, tensors)
        size = sum(each.size for each in work)
        if size > self._most_bytes:
            raise InvalidInput(f"the inputs would have {size} bytes, at most {self._most_bytes}")
        if size > free_bytes - self.held_bytes:
            raise Overloaded(_FULL)
        count_out = count_in(size + len(body))
        self.held_bytes += size
        started_ns = time.monotonic_ns()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._thread, _packed, tensors, work)

        def ended(future: asyncio.Future[tuple[list[list[Any]], Body]]) -> None:
            self.held_bytes -= size
            if (error := future.exception()) is not None:
                why = f"the inputs can't be decoded: {error!r}"
                on_end(error if isinstance(error, LaxityError) else ExecutionFailed(why))
                return
            specs, whole = future.result()
            took_ns = time.monotonic_ns() - started_ns
            on_end(Restored(_as_it_was(header, specs, took_ns), whole, took_ns))

        future.add_done_callback(ended)
        return count_out

    def close(self) -> None:
        """Accepts nothing more; decoding in progress ends."""
        self._thread.shutdown(wait=False)

    def _work(self, header: Header, tensors: Tensors) -> list[Restoration]:
        said = header["enc"]
        if not isinstance(said, Mapping) or not said.keys() <= tensors.keys():
            raise InvalidInput("enc is a map of encodings, by the name of an input")
        card = self._catalog.card(header.get("model"), header.get("variant"))
        specs = {spec.name: spec for spec in card.signature.inputs}
        work = []
        for name, text in said.items():
            if name not in specs:
                raise InvalidInput(f"model {card.name!r} has no input {name!r}")
            array, spec = tensors[name], specs[name]
            is_file = array.dtype == np.uint8 and array.ndim == 1
            value = [array.tobytes()] if is_file else array
            work.append(restoration(name, text, value, spec.dtype, spec.shape, self._most_bytes))
        return work


def _packed(tensors: Tensors, work: list[Restoration]) -> tuple[list[list[Any]], Body]:
    whole = {**tensors, **{each.name: each.run() for each in work}}
    specs, buffers = pack_tensors(whole)
    return specs, memoryview(b"".join(buffers))


def _as_it_was(header: Header, specs: list[list[Any]], took_ns: int) -> Header:
    fields = {key: value for key, value in header.items() if key != "enc"}
    budget_ns = fields.get("budget_ns")
    if type(budget_ns) is int and budget_ns > 0:
        fields["budget_ns"] = max(1, budget_ns - took_ns)
    return {**fields, "in": specs, "exact": True}
