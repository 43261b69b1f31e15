"""`laxity demo`: a box, cameras, overload, a killed worker, and how many deadlines were met."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from rich.console import Console

from replay.demo.box import Box, DemoError, generator_cores
from replay.demo.cameras import Run, Scans, lag_warning, make_cameras, schedule
from replay.demo.figures import (
    PHASES,
    Kill,
    capacity_of,
    laws,
    phase_figures,
    recovery,
)
from replay.demo.view import Screen, number, summary
from replay.demo.waits import CoreWaits, wait_warning
from scheduler import AsyncClient, LaxityError
from scheduler.files import write_output

MODEL, VARIANT = "digits", "large"

READY_S = 180.0
"""How long the box may take to start and to profile its models."""

CALM_S = 10.0
"""How long the box may take to take up a policy and to finish the requests it holds."""

KILL_AT = 0.3
"""When the worker is killed, as a share of its phase."""

RECOVERY_S = 8.0
"""The least length of the phase with the kill."""

_LOOK_S = 0.1
_KILL_LOOK_S = 0.005


class Demo:
    """One run of the demo.

    Args:
        seconds: The length of each phase.
        cameras: The number of cameras that send scans.
        seed: The seed of the cameras.
        json_file: The file for the figures; None writes none.
        keep: Whether to keep the box's folder.
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
        self._excuse: str | None = None
        self._started_s = time.monotonic()

    def run(self) -> int:
        """Runs the demo; returns the exit status: 1 if it failed or a law was broken, else 0."""
        # The drawing thread gives way to the load generator within a millisecond.
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
        if self._json_file is not None:  # first, since a reader of the display may close its pipe
            write_output(self._json_file, json.dumps(figures, indent=2) + "\n")
        console.print(summary(figures, {phase.name: phase.title for phase in PHASES}))
        if self._excuse is not None:
            console.print(f"\n{self._excuse}", style="yellow", markup=False)
        self._say_where(box)
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
            model = await _measured(client)
            mine = generator_cores(box.device_cores)
            self._say_box(screen, model, box.device_cores)
            _settle_down(mine)
            waits = CoreWaits(client)
            try:
                phases, kill_found = await self._play_all(box, client, screen, scans, model)
            finally:
                waits.stop()
            self._excuse = wait_warning(waits.shares)
        finally:
            await client.close()
        shares = {p["policy"]: p["share_of_possible"] for p in phases if p["load"] > 1}
        return {
            "laxity": version("laxity"),
            "seconds": None,
            "box": {
                "cores": os.cpu_count(),
                "device_cores": list(box.device_cores),
                "generator_cores": sorted(mine),
            },
            "model": model,
            "phases": phases,
            "overload": shares,
            "recovery": kill_found,
            "laws": laws(phases),
            "left_over": None,
        }

    def _say_box(self, screen: Screen, model: dict[str, Any], cores: Sequence[int]) -> None:
        for target in model["targets"]:
            size = target["best_batch"]
            where = f" (core {', '.join(map(str, cores))})" if cores else ""
            screen.say(
                f"{target['target']}{where} runs {MODEL}/{VARIANT} with "
                f"{target['runtime']}: {number(model['alone_ms'])} ms for one scan, "
                f"{number(target['per_s'])} scans/s "
                + (f"in batches of {size}" if size > 1 else "one by one"),
                indent=2,
            )
        screen.say(
            f"{self._cameras} cameras send held-out handwriting, each with its own deadline "
            "between 30 and 100 ms",
            indent=2,
        )

    async def _play_all(
        self, box: Box, client: AsyncClient, screen: Screen, scans: Scans, model: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        found, recovered = [], None
        capacity = model["capacity_per_s"]
        for order, phase in enumerate(PHASES):
            await _take_policy(box, client, phase.policy)
            seconds = max(self._seconds, RECOVERY_S) if phase.kills else self._seconds
            cameras = make_cameras(self._cameras, phase.load * capacity, self._seed)
            shots = schedule(cameras, seconds, len(scans), self._seed + order)
            late, budget_ms = phase.accept_late, phase.budget_ms
            run = Run(client, MODEL, VARIANT, scans, accept_late=late, budget_ms=budget_ms)
            screen.begin(phase, run, seconds)
            killer = Killer(client, run, screen)
            if phase.kills:
                killer.start(KILL_AT * seconds)
            try:
                records = await run.play(shots)
            finally:
                killer.stop()
            recovered = recovery(killer.kill, records) or recovered
            figures = phase_figures(phase, records, seconds, capacity)
            found.append(figures)
            screen.end(phase, figures)
            if warning := lag_warning(records):
                screen.say(f"{phase.title}: {warning}", "yellow", indent=2)
        return found, recovered


class Killer:
    """Kills the process of a target that has work, and watches it come back."""

    def __init__(self, client: AsyncClient, run: Run, screen: Screen) -> None:
        """Begins with nothing killed."""
        self.kill: Kill | None = None
        self._client = client
        self._run = run
        self._screen = screen
        self._task: asyncio.Task[None] | None = None

    def start(self, at_s: float) -> None:
        """Schedules the kill in `at_s` seconds."""
        self._task = asyncio.ensure_future(self._work(at_s))

    def stop(self) -> None:
        """Stops watching.

        Raises:
            LaxityError: The box did not answer with its status.
        """
        if self._task is not None and not self._task.cancel():
            self._task.result()

    async def _work(self, at_s: float) -> None:
        await asyncio.sleep(at_s)
        victim = await self._busy_target()
        kill = self.kill = Kill(victim["id"], victim["pid"], self._run.now_s())
        os.kill(kill.pid, signal.SIGKILL)
        self._screen.note(f"kill -9 {kill.pid}, the worker of {kill.target}")
        while True:
            await asyncio.sleep(_LOOK_S)
            for now in await _targets(self._client):
                if now["id"] == kill.target and now["up"] and now["pid"] != kill.pid:
                    away_s = self._run.now_s() - kill.at_s
                    back = f"{kill.target} is back after {away_s:.1f} s, as pid {now['pid']}"
                    self._screen.note(back)
                    return

    async def _busy_target(self) -> dict[str, Any]:
        while True:
            for target in await _targets(self._client):
                if target["up"] and target["runs"] and target["pid"]:
                    return target
            await asyncio.sleep(_KILL_LOOK_S)


async def _targets(client: AsyncClient) -> list[dict[str, Any]]:
    return list((await client.status())["targets"])


def load_scans() -> Scans:
    """The scans that no variant was trained on.

    Raises:
        DemoError: They can't be read.
    """
    path = Path(str(files("configs") / "digits_heldout.npz"))
    try:
        with np.load(path) as held:
            return Scans(held["images"][:, None].astype(np.float32), held["labels"])
    except OSError as error:
        raise DemoError(f"{path} can't be read: {error.strerror or error}") from None


async def _wait_ready(box: Box, client: AsyncClient, screen: Screen) -> None:
    """Waits until every target has profiled its models."""
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


async def _measured(client: AsyncClient) -> dict[str, Any]:
    models = await client.models()
    model = capacity_of(models, MODEL, VARIANT)
    if model is None:
        reasons = "; ".join(f"{p['model']}: {p['reason']}" for p in models["problems"])
        raise DemoError(f"no target runs {MODEL}/{VARIANT}. {reasons}".strip())
    return model


async def _take_policy(box: Box, client: AsyncClient, policy: str) -> None:
    """Writes the policy into the configuration; waits until the box uses it and holds nothing."""
    box.configure(policy)
    end_s = time.monotonic() + CALM_S
    while time.monotonic() < end_s:
        status = await client.status()
        if status["policy"]["name"] == policy and not status["held"]:
            return
        await asyncio.sleep(_LOOK_S)
    raise DemoError(f"the box did not switch to policy {policy!r}:\n{box.log()}")


def _settle_down(cores: set[int]) -> None:
    """Keeps the generator off the devices' cores, and the garbage collector from delaying it."""
    if cores:
        os.sched_setaffinity(0, cores)
    gc.collect()
    gc.freeze()


def _interrupt(_number: int, _frame: Any) -> None:
    raise KeyboardInterrupt
