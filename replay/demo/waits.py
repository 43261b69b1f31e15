"""How long the box's workers waited for a core while others used it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from statistics import fmean

from scheduler import AsyncClient, LaxityError

LONG_WAIT = 0.1
"""A larger mean share of its time than this is a reason why a device does less than it could."""

_LOOK_S = 1.0


class CoreWaits:
    """Collects, while it runs, what the box tells of each device.

    Attributes:
        shares: For each device, the shares of its time on the CPU that it spent waiting for a core.
    """

    def __init__(self, client: AsyncClient) -> None:
        """Begins to ask."""
        self.shares: dict[str, list[float]] = {}
        self._client = client
        self._task = asyncio.ensure_future(self._work())

    def stop(self) -> None:
        """Asks no more."""
        self._task.cancel()

    async def _work(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            with contextlib.suppress(LaxityError):  # who needs the box will say so
                for target in (await self._client.status())["targets"]:
                    share = target["telemetry"].get("core_wait")
                    if share is not None:
                        self.shares.setdefault(target["id"], []).append(share)


def wait_warning(shares: Mapping[str, Sequence[float]]) -> str | None:
    """A warning if something else had a device's core for long; None if nothing had."""
    means = {device: fmean(told) for device, told in shares.items() if told}
    device, most = max(means.items(), key=lambda each: each[1], default=("", 0.0))
    if most < LONG_WAIT:
        return None
    return (
        f"{device} waited for a core for {100 * most:.0f} % of its time, because others ran on "
        "it: less was in time than on a quiet machine (laxity doctor names the programs)"
    )
