"""`laxity policy`: checks a policy against the laws, and compares it with others."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from statistics import fmean
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from scheduler.cli.help import COMMAND, COMMANDS, examples
from scheduler.cli.streams import AsJson, WrongUsage, print_json, say
from scheduler.cli.tables import plain_table
from scheduler.core.errors import line_of
from scheduler.core.policy import Policy
from scheduler.errors import LaxityError
from scheduler.shares import percent

if TYPE_CHECKING:
    from replay.conformance import Verdict

_LIMIT_S = 60.0
"""Time limit of a check or scenario, which take about a second: a policy that exceeds it hangs."""

_SLOW_S = 5.0
"""Time after which a check or scenario is reported as slow."""

_LOOK_S = 0.25
"""Interval at which it is looked at where the policy is. Many looks, because a policy that decides
without end is outside its own code for part of the time. At each one after `_LIMIT_S` the exception
is raised again, in case it was swallowed, as in a `__del__`."""


app = typer.Typer(**COMMANDS)


@app.callback()
def _policy() -> None:
    """Makes `test` a subcommand, although it is the only one."""


@app.command(
    "test",
    **COMMAND,
    epilog=examples(
        ("laxity policy test mine.py", "the only policy of a file"),
        ("laxity policy test mine.py:Mine --json", "figures for a program"),
        ("laxity policy test 'mine.py?depth=5&quantile=0.9'", "with options"),
        ("laxity policy test goodput", "one of those that come with laxity"),
    ),
)
def check(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FILE[:CLASS]",
            help="Or any name that a configuration takes; options follow a ?.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Check a policy against the laws, and play it beside others; exit status 1 if it fails."""
    if not _test(name, as_json):
        raise typer.Exit(1)


def _test(name: str, as_json: bool) -> bool:
    from replay import policy_trial as trial  # slow to import
    from replay.conformance import conformance
    from replay.experiment import PolicyChoice, PolicyFault

    console = Console(stderr=True, highlight=False)
    # stdout is for the results, not for what a policy prints
    with redirect_stdout(sys.stderr), trial.told_of(name):
        try:
            choice = PolicyChoice.parse(name)
            policy = choice.make()
        except ValueError as error:
            raise WrongUsage(str(error)) from None
        label = "?".join([type(policy).__name__, *name.split("?")[1:]])
        with console.status("the laws") as status, _ended(policy) as again:
            verdicts = []
            for verdict in conformance(choice.make):
                verdicts.append(verdict)
                again()
            lawful = all(verdict.problem is None for verdict in verdicts)
            shares: dict[str, dict[str, float | None]] = {}
            took_us: dict[str, list[float]] = {}
            for scenario in trial.SCENARIOS if lawful else ():
                status.update(f"scenario {scenario}")
                try:
                    played = trial.play_policy(replace(choice, label=label), scenario)
                except PolicyFault as fault:
                    verdicts.append(trial.did_not_play(scenario, fault))
                    lawful = False
                    break
                shares[scenario] = {result.policy: result.on_time_share() for result, _ in played}
                for result, us in played:
                    took_us.setdefault(result.policy, []).append(us)
                again()
    means_us = {policy: round(fmean(us), 1) for policy, us in took_us.items()}
    if as_json:
        checks = [{"check": v.check, "problem": v.problem} for v in verdicts]
        figures = {"policy": label, "lawful": lawful, "checks": checks, "on_time_share": shares}
        print_json({**figures, "us_per_request": means_us})
    else:
        _show(Console(highlight=False), label, verdicts, shares, means_us)
    return lawful


class _NoEnd(KeyboardInterrupt):
    """Time is up; an interrupt like Ctrl-C, so that it is not taken for a failure of the policy."""


@contextmanager
def _ended(policy: Policy) -> Iterator[Callable[[], None]]:
    """Interrupts its body after `_LIMIT_S`, and says after `_SLOW_S` where the policy is.

    The yielded function restarts the timer.

    Raises:
        LaxityError: Time was up; the message says where the policy was.
    """
    name, looks, is_slow, where = type(policy).__name__, 0, False, ""

    def again() -> None:
        nonlocal looks, is_slow, where
        looks, is_slow, where = 0, False, ""

    def look(_number: int, frame: FrameType | None) -> None:
        nonlocal looks, is_slow, where
        looks += 1
        if line := line_of(policy, frame):
            where = f", at {line}"
        if looks * _LOOK_S >= _LIMIT_S:
            raise _NoEnd(where)
        if looks * _LOOK_S >= _SLOW_S and not is_slow:
            is_slow = True
            say(f"{name} is slow: a check or a scenario has taken {_SLOW_S:g} s so far{where}")

    before = signal.signal(signal.SIGALRM, look)
    try:
        signal.setitimer(signal.ITIMER_REAL, _LOOK_S, _LOOK_S)
        yield again
    except _NoEnd as no_end:
        raise LaxityError(
            f"{name} had not finished a check or a scenario after {_LIMIT_S:g} s"
            f"{no_end}; a decision should take microseconds"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _show(
    console: Console,
    label: str,
    verdicts: Sequence[Verdict],
    shares: dict[str, dict[str, float | None]],
    means_us: dict[str, float],
) -> None:
    for verdict in verdicts:
        mark = "[green]ok[/green]  " if verdict.problem is None else "[red]FAIL[/red]"
        console.print(f"{mark} {verdict.check}")
        if verdict.problem is not None:
            console.print(f"     {verdict.problem[:2000]}", markup=False)
    if any(verdict.problem is not None for verdict in verdicts):
        others = "other " if shares else ""
        console.print(f"{label} fails; the {others}scenarios were not played.", markup=False)
    if not shares:
        return
    policies = list(next(iter(shares.values())))
    table = plain_table("in time", *policies, right=policies)
    for scenario, by_policy in shares.items():
        cells = [by_policy.get(policy) for policy in policies]
        table.add_row(scenario, *("" if cell is None else percent(cell) for cell in cells))
    table.add_row("µs per request", *(f"{means_us[policy]:,.0f}" for policy in policies))
    console.print(table)
