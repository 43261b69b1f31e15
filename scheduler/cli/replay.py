"""`laxity replay`: plays a workload, a trace, a journal or a scenario with several policies."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli.help import COMMAND, examples, given
from scheduler.cli.places import STDOUT, check_places
from scheduler.cli.played import Files, give
from scheduler.cli.progress import Now, progress
from scheduler.cli.streams import WrongUsage, say
from scheduler.config.problems import ConfigError
from scheduler.errors import LaxityError

if TYPE_CHECKING:
    from replay.experiment import Experiment, PolicyChoice
    from replay.live.endings import LiveTally
    from replay.results import RunResult

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_POLICIES = "goodput,edf,fcfs"

Policies = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="A,B",
        help="Policies to play with; options follow a ?, as in goodput?quantile=0.99. May be "
        "given several times.",
        show_default=_POLICIES,
    ),
]


@app.command(
    "replay",
    **COMMAND,
    epilog=examples(
        ("laxity replay scenarios --policy goodput,edf", "the standard scenarios"),
        ("laxity replay load-1_2 --policy goodput,edf --compare goodput,edf", "one of them"),
        ("laxity replay work.yaml --fleet fleet.yaml --load 0.5,1,2 --report r.html", "your own"),
        ("laxity replay trace.csv.gz --fleet live --slice 0:600", "a trace, on this box's profile"),
        ("laxity replay journal/ --policy goodput,edf", "what if yesterday had been edf's"),
        ("laxity replay journal/ --verify", "does the core still say the same?"),
        ("laxity replay work.yaml --against live", "send it to the running box"),
    ),
)
def replay(
    ctx: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="`scenarios`, the name of one, a workload or scenario (YAML), a trace in any "
            "known format, or the folder of a journal."
        ),
    ],
    policy: Policies = None,
    against: Annotated[str, typer.Option(metavar="sim|live", help="What to play against.")] = "sim",
    fleet: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|live|URL",
            help="The targets: a fleet (YAML), a table of profiles (CSV), a journal's, or a "
            "running box.",
            show_default="the source's own, else `live`",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of seeds to play with.")
    ] = 1,
    load: Annotated[
        list[str] | None,
        typer.Option(
            metavar="X,Y",
            help="Shares of the fleet's capacity: 0.8, or 0.5,1,2 for a chart over load.",
            show_default="the workload's own",
        ),
    ] = None,
    rate_scale: Annotated[
        float, typer.Option(min=0.001, metavar="X", help="Multiplies a trace's rate.")
    ] = 1.0,
    speed: Annotated[
        float, typer.Option(min=0.001, metavar="X", help="Plays a trace faster by this factor.")
    ] = 1.0,
    slice_: Annotated[
        str | None,
        typer.Option("--slice", metavar="FROM:TO", help="Only these seconds of a trace."),
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="The format of a trace.",
            show_default="found from its first line",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The model that a trace's requests are for.",
            show_default="those it names, else the first by name",
        ),
    ] = None,
    deadline_ms: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="MS", help="Their deadline, in place of the trace's own."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="The most requests to play; overrides a workload's own number."
        ),
    ] = None,
    only: Annotated[str, typer.Option(metavar="GLOB", help="Of the scenarios, only these.")] = "*",
    jobs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes that play, or send to a running box.")
    ] = 1,
    bound: Annotated[bool, typer.Option(help="Compute what a clairvoyant could do.")] = True,
    compare: Annotated[
        str | None, typer.Option(metavar="A,B", help="Differences A - B, paired over the seeds.")
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the rows as JSON; - is stdout, and the table goes to stderr.",
        ),
    ] = None,
    full: Annotated[
        Path | None, typer.Option("--full", metavar="FILE", help="Write the full results as JSON.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a report in one file.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw the share on time over load.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Play a journal through the core again, and demand the same commands."
        ),
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="LAXITY_URL",
            metavar="URL",
            help="The box: with --against live, or for its targets.",
        ),
    ] = None,
) -> None:
    """Play requests with several policies, and see which one keeps the most deadlines."""
    with _plain_errors():
        if verify:
            _refuse(ctx, set(given(ctx)) - {"source", "verify"}, "--verify plays nothing")
            raise typer.Exit(_verify(Path(source)))
        from replay.planning import Ask, file_of, plan, traces_of
        from replay.witness import witnessed

        places = (None if json_file == STDOUT else json_file), full, report, chart
        check_places(*places, read=(file_of(source), fleet), begin=b"[{<")
        if _is_live(against):
            _refuse(ctx, {"policy", "compare"}, "a running box has a policy of its own")
        ask = Ask(
            source, fleet, None, rate_scale, speed, slice_, format_, model, deadline_ms, requests,
            only, bound, url, seeds,
        )  # fmt: skip
        asked = [replace(ask, load=share) for share in _loads(",".join(load or ()))]
        experiments = [each for one in asked for each in plan(one, live=_is_live(against))]
        check_places(*places, read=traces_of(experiments), begin=b"[{<")
        _check_chart(chart, experiments)
        if _is_live(against):
            results, lost = _play_live(experiments, url, seeds, jobs)
        else:
            # stdout is for the results, not for what a policy prints
            with witnessed(), redirect_stdout(sys.stderr):
                choices = _choices(",".join(policy or [_POLICIES]), compare)
                results, lost = _simulate(experiments, choices, seeds, jobs)
            compare = _played_pair(results, compare)
    give(results, _pair(compare) or None, Files(json_file, full, report, chart))
    if lost is not None:
        with _plain_errors():
            raise lost


# -- playing


def _simulate(
    experiments: list[Experiment], choices: list[PolicyChoice], seeds: int, jobs: int
) -> tuple[list[RunResult], BaseException | None]:
    """The results, and the error that kept some from being played to the end."""
    from replay.experiment import Stopped
    from replay.headway import watched
    from replay.pool import run_all

    results: list[RunResult] = []
    faults: list[str] = []
    lost: BaseException | None = None
    now = Now()
    with watched(), progress("playing", len(experiments) * seeds, now) as advance:

        def done(some: list[RunResult]) -> None:
            results.extend(some)
            advance()

        try:
            run_all(experiments, choices, range(1, seeds + 1), jobs, done, faults.append, now.set)
        except (LaxityError, ValueError, OSError, KeyboardInterrupt) as error:
            lost = error
    if lost is not None and results:
        results[-1].notes.append(_stopped(results, len(experiments), seeds))
    if isinstance(lost, Stopped):
        results.extend(lost.played.results)
        faults.extend(lost.played.faults)
    for fault in faults:
        say(fault)
    lost = lost or (typer.Exit(2) if faults else None)
    if lost is not None and not results:
        raise lost
    order = {(each.name, each.load): place for place, each in enumerate(experiments)}
    results.sort(key=lambda result: (order[result.scenario, result.load], result.seed))
    return results, lost


def _stopped(results: list[RunResult], cases: int, seeds: int) -> str:
    """The note to results that are only a part of what was asked for."""
    played = len({(each.scenario, each.load, each.seed) for each in results})
    what = "seeds" if cases == 1 else "cases" if seeds == 1 else "cases and seeds"
    return f"stopped early: this is {played} of {cases * seeds} {what}"


def _play_live(
    experiments: list[Experiment], url: str | None, seeds: int, jobs: int
) -> tuple[list[RunResult], BaseException | None]:
    """The results, and the error (a lost box, or Ctrl-C) that kept some from being played."""
    from replay.live.experiment import Interrupted, play_experiment

    results: list[RunResult] = []
    now = Now()

    def note(tally: LiveTally) -> None:
        now.set(lambda: f"{tally.sent:,} requests sent, {tally.ended:,} ended")

    with progress("playing", len(experiments) * seeds, now) as advance:
        for experiment in experiments:
            for seed in range(1, seeds + 1):
                try:
                    results.append(play_experiment(experiment, seed, url, jobs, note))
                except (LaxityError, KeyboardInterrupt) as error:
                    if isinstance(error, Interrupted):
                        results.append(error.result)
                    if not results:
                        raise
                    return results, error.__cause__ or error
                advance()
    return results, None


def _verify(path: Path) -> int:
    from replay.journal import verify

    if not path.exists():
        raise ValueError(f"there is no journal {path}; --verify takes a journal's folder or file")
    verdicts = verify(path, say)
    for verdict in verdicts:
        print(
            f"run {verdict.run}: {verdict.events:,} events, {verdict.commands:,} commands and "
            f"{verdict.requests:,} requests the same"
        )
        if verdict.difference is not None:
            print(verdict.difference)
        elif verdict.unverified is not None:
            print(f"  not verified any further: {verdict.unverified}")
    if not any(verdict.events for verdict in verdicts):
        print("nothing could be verified")
        return 1
    return int(any(verdict.difference is not None for verdict in verdicts))


# -- options


def _choices(policy: str, compare: str | None) -> list[PolicyChoice]:
    from replay.experiment import PolicyChoice

    names = [name for name in _listed(policy) if name]
    names += [name for name in _pair(compare) if name not in names]
    if not names:
        raise WrongUsage("--policy names no policy")
    return [PolicyChoice.parse(name) for name in dict.fromkeys(names)]


def _played_pair(results: list[RunResult], compare: str | None) -> str | None:
    """The pair to compare; None if one of its policies has no result."""
    played = {result.policy for result in results}
    return compare if played.issuperset(_pair(compare)) else None


def _loads(text: str) -> list[float | None]:
    """The loads to play at; None is the workload's own."""
    if not text:
        return [None]
    try:
        found = [float(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0.001 <= load < math.inf for load in found):
        raise WrongUsage(f"--load takes numbers from 0.001, such as 0.8 or 0.5,1,2, not {text!r}")
    return list(dict.fromkeys(found))


def _check_chart(chart: Path | None, experiments: list[Experiment]) -> None:
    from replay.report import Case, sweeps

    if chart is not None and not sweeps(Case(each.name, each.load) for each in experiments):
        raise WrongUsage(
            "--chart is drawn over the load of a workload or scenario: give several, such as "
            "--load 0.5,1,2. Of a trace or journal, --report draws what there is"
        )


def _listed(text: str) -> list[str]:
    """Splits a text at commas and the spaces about them, except at those within brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _pair(compare: str | None) -> tuple[str, str] | tuple[()]:
    if not compare:
        return ()
    pair = _listed(compare)
    if len(pair) != 2:
        raise WrongUsage(f"--compare takes two policies, A,B, not {compare!r}")
    return pair[0], pair[1]


def _refuse(ctx: typer.Context, names: set[str], why: str) -> None:
    """Raises `WrongUsage` if any of these options was given."""
    options = [option for name, option in given(ctx).items() if name in names]
    if options:
        raise WrongUsage(f"{why}: leave out {', '.join(options)}")


def _is_live(against: str) -> bool:
    if against not in ("sim", "live"):
        raise WrongUsage(f"--against is sim or live, not {against!r}")
    return against == "live"


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Reports an input error as one line, and ends with status 2."""
    said: set[str] = set()

    def say_once(text: str) -> None:
        # A source is read more than once, and warns each time.
        if text not in said:
            said.add(text)
            say(text)

    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_: say_once(str(message))
    try:
        yield
    except ConfigError as error:
        raise WrongUsage(str(error)) from None
    except (LaxityError, BrokenPipeError):
        raise
    except OverflowError as error:
        raise WrongUsage(f"a number is too large to be played with: {error}") from None
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        raise WrongUsage(f"{error.filename}: {error.strerror}" if named else str(error)) from None
    except ValueError as error:
        raise WrongUsage(str(error)) from None
