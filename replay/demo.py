"""`laxity demo`: a box, cameras, overload, a killed worker, and what became of the deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from rich.console import Console

from replay.cameras import Run, Scans, lag_warning, make_cameras, schedule
from replay.demo_box import Box, DemoError, generator_cores
from replay.demo_figures import (
    PHASES,
    Kill,
    Phase,
    capacity_of,
    laws,
    phase_figures,
    recovery,
)
from replay.demo_view import Screen, number, summary
from scheduler import AsyncClient, LaxityError

MODEL, VARIANT = "digits", "large"

READY_S = 180.0
"""How long the box may take to start and to measure its models."""

CALM_S = 10.0
"""How long the box may take to take over a policy, or to end what it holds."""

KILL_AT = 0.3
"""When the worker is killed, as a share of its phase."""

RECOVERY_S = 8.0
"""How long the phase with the kill lasts at least."""

_LOOK_S = 0.1


class Demo:
    """One performance.

    Args:
        seconds: How long each phase plays.
        cameras: How many cameras send scans.
        seed: Chance of the cameras.
        json_file: Where the figures go; None for nowhere.
        keep: Whether the box's folder stays.
    """

    def __init__(
        self, seconds: float, cameras: int, seed: int, json_file: Path | None, keep: bool
    ) -> None:
        """Starts nothing yet."""
        self._seconds = seconds
        self._cameras = cameras
        self._seed = seed
        self._json_file = json_file
        self._keep = keep
        self._console = Console(highlight=False)
        self._started_s = time.monotonic()

    def run(self) -> int:
        """Plays it; the exit status: 0, or 1 if it failed or a law was broken."""
        # The thread that draws gives way to the load generator within a millisecond.
        sys.setswitchinterval(0.001)
        signal.signal(signal.SIGTERM, _interrupt)
        console = self._console
        try:
            with Box(PHASES[0].policy, self._keep) as box:
                with Screen(console) as screen:
                    figures = uvloop.run(self._perform(box, screen))
                box.stop()
                figures["left_over"] = box.killed_at_stop
        except KeyboardInterrupt:
            print("laxity: interrupted; the box is stopped", file=sys.stderr)
            return 130
        except (DemoError, LaxityError) as error:
            print(f"laxity: {error}", file=sys.stderr)
            return 1
        figures["seconds"] = time.monotonic() - self._started_s
        console.print(summary(figures, {phase.name: phase.title for phase in PHASES}))
        self._say_where(box)
        if self._json_file is not None:
            self._json_file.write_text(json.dumps(figures, indent=2) + "\n")
        return 0 if figures["laws"]["kept"] else 1

    def _say_where(self, box: Box) -> None:
        lines = [f"{time.monotonic() - self._started_s:.0f} s in all; nothing is left running."]
        if self._json_file is not None:
            lines.append(f"Figures: {self._json_file}")
        if self._keep:
            lines.append(f"Configuration, log and profile: {box.folder}")
        self._console.print("\n".join(lines), style="dim", markup=False)

    async def _perform(self, box: Box, screen: Screen) -> dict[str, Any]:
        screen.say("laxity demo: cameras with deadlines, on a box of its own", "bold")
        scans = load_scans()
        box.start()
        client = AsyncClient(box.url)
        try:
            await _wait_ready(box, client, screen)
            model = await _measured(client, screen)
            device_cores = _worker_cores(await client.status())
            mine = generator_cores(device_cores)
            self._say_box(screen, model, device_cores)
            _settle_down(mine)
            phases, kill_found = await self._play_all(box, client, screen, scans, model)
        finally:
            await client.close()
        shares = {p["policy"]: p["share_of_possible"] for p in phases if p["load"] > 1}
        return {
            "laxity": version("laxity"),
            "seconds": None,
            "box": {
                "cores": os.cpu_count(),
                "device_cores": sorted(device_cores),
                "generator_cores": sorted(mine),
            },
            "model": model,
            "phases": phases,
            "overload": shares,
            "recovery": kill_found,
            "laws": laws(phases),
            "left_over": None,
        }

    def _say_box(self, screen: Screen, model: dict[str, Any], cores: set[int]) -> None:
        for target in model["targets"]:
            screen.say(
                f"  {target['target']} on core {_listed(cores)} runs {MODEL}/{VARIANT} with "
                f"{target['runtime']}: {number(model['alone_ms'])} ms for one scan, "
                f"{number(target['per_s'])} scans/s in batches of {target['best_batch']}"
            )
        screen.say(
            f"  {self._cameras} cameras send held-out handwriting, each with its own deadline "
            "between 30 and 100 ms"
        )

    async def _play_all(
        self, box: Box, client: AsyncClient, screen: Screen, scans: Scans, model: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        found: list[dict[str, Any]] = []
        recovered = None
        capacity = model["capacity_per_s"]
        for number_, phase in enumerate(PHASES):
            await _take_policy(box, client, phase.policy)
            seconds = max(self._seconds, RECOVERY_S) if phase.kills else self._seconds
            cameras = make_cameras(self._cameras, phase.load * capacity, self._seed)
            shots = schedule(cameras, seconds, len(scans), self._seed + number_)
            run = Run(client, MODEL, VARIANT, scans, accept_late=phase.accept_late)
            screen.begin(phase, run, seconds)
            killing = asyncio.ensure_future(_kill(client, run, KILL_AT * seconds, screen, phase))
            try:
                records = await run.play(shots)
                kill = await killing
            finally:
                killing.cancel()
            figures = phase_figures(phase, records, seconds, capacity)
            recovered = recovery(kill, records) or recovered
            screen.end(phase, figures)
            if warning := lag_warning(records):
                screen.say(f"  {warning}", "yellow")
        return found, recovered


def load_scans() -> Scans:
    """The scans that no variant was trained on.

    Raises:
        DemoError: They are not there.
    """
    path = Path(str(files("configs") / "digits_heldout.npz"))
    try:
        with np.load(path) as held:
            return Scans(held["images"][:, None].astype(np.float32), held["labels"])
    except OSError as error:
        raise DemoError(f"{path} can't be read: {error.strerror or error}") from None


async def _wait_ready(box: Box, client: AsyncClient, screen: Screen) -> None:
    """Until every target has measured its models."""
    screen.note("starting the agent; Ray takes some seconds")
    end_s = time.monotonic() + READY_S
    said: set[str] = set()
    while time.monotonic() < end_s:
        box.check()
        if box.socket.exists():
            with contextlib.suppress(LaxityError):
                targets = (await client.status(timeout_s=1.0))["targets"]
                if targets and all(t["progress"]["text"] == "ready" for t in targets):
                    screen.note("")
                    screen.targets(())
                    return
                if targets and not said:
                    screen.note("measuring the models, which a box does once")
                    said.add("measuring")
                screen.targets(targets)
        await asyncio.sleep(_LOOK_S)
    raise DemoError(f"the box was not ready after {READY_S:g} s:\n{box.log()}")
