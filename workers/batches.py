"""Run lists of items on a session: stack them, run the batch, split its outputs.

Only batch sizes that were measured run. A number of items between two of them is filled up to the
larger with copies of the last item, whose outputs are thrown away. The first batch of a size that
never ran takes libraries two to ten times as long as later ones, and a GPU's may choose other
kernels for it, so its time could not be promised. Where items of a batch run side by side, each for
itself, there are no copies: each would take as much as an item.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

from workers.runtimes.base import Parallel, Retaining, RunError, Serving, Session, spell
from workers.stacking import stack_items
from workers.tensors import Array, Item

Run = Callable[[Mapping[str, Array]], dict[str, Array]]


class ItemRunner:
    """Runs items on a session, stacking them when the model is batched.

    Each batch gets a fresh array: reusing one measured no faster.
    """

    def __init__(self, session: Session, batched: bool) -> None:
        """Use a session; `batched` is that of the model's signature."""
        self._session = session
        self._serving = session if isinstance(session, Serving) else None
        self._batched = batched
        self._is_filled_up = not (isinstance(session, Parallel) and session.apart)

    def run(self, items: Sequence[Item], size: int) -> list[Item | Exception]:
        """Run items together; if the batch fails, run each alone so that only bad items fail.

        Args:
            items: Tensors by name, without a batch dimension.
            size: How many items a batch of them runs as; not below their number.

        Returns:
            The outputs of each item, without a batch dimension, or a `RunError`. Outputs of one
            batch share memory, which no later run writes to.
        """
        if self._batched and len(items) > 1:
            filling = repeat(items[-1], size - len(items) if self._is_filled_up else 0)
            try:
                return list(self._run_batch([*items, *filling], self._serve())[: len(items)])
            except Exception:  # run alone below, each bad item reports its own error
                pass
        return [self._run_alone(item) for item in items]

    def run_batch(self, items: Sequence[Item]) -> list[Item]:
        """Run items together that are not requests, to compare or measure them.

        Raises:
            RunError: The model returned a wrong number of rows.
            Exception: Whatever the library or stacking raised.
        """
        return self._run_batch(items, self._session.run)

    def give_back(self, items: Sequence[Item]) -> None:
        """Shrink the session's memory to what these items need; they are not requests."""
        if isinstance(self._session, Retaining):
            with contextlib.suppress(Exception):  # from the library: requests meet it when they run
                self._run_batch(items, self._session.give_back)

    def _run_batch(self, items: Sequence[Item], run: Run) -> list[Item]:
        if not self._batched:
            return [run(item) for item in items]
        count = len(items)
        outputs = run(stack_items(items))
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != count:
                raise RunError(f"output '{name}' has shape {array.shape} for {count} items")
        # The ellipsis keeps a zero-dimensional row an array.
        return [{name: array[i, ...] for name, array in outputs.items()} for i in range(count)]

    def _serve(self) -> Run:
        return self._session.run if self._serving is None else self._serving.serve

    def _run_alone(self, item: Item) -> Item | Exception:
        try:
            return self._run_batch([item], self._serve())[0]
        except RunError as error:
            # A new one: this one's traceback leads to the list that it would be put in, and such a
            # cycle keeps the tensors.
            return RunError(str(error))
        except Exception as error:  # a library's own class may not exist in the caller's process
            return RunError(spell(error))
