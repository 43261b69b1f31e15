"""`laxity optimize`: makes faster variants of a model, and measures their loss of accuracy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NamedTuple, get_args

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from scheduler.cli.help import COMMAND, examples, given
from scheduler.cli.inputs import load_array, load_items
from scheduler.cli.streams import AsJson, WrongUsage, print_json
from scheduler.cli.tables import plain_table
from scheduler.core.figures import figure
from scheduler.errors import LaxityError
from scheduler.shares import percent
from workers.model import Model, Variant
from workers.model_yaml import ModelFileError, nearest
from workers.optimising.comparison import Samples
from workers.optimising.conversion import ConversionError, Target
from workers.optimising.optimise import Made, Wish, optimise
from workers.repository import RepositoryError, load_repository
from workers.runtimes.base import ModelLoadError, RunError
from workers.sampling import sample_items
from workers.tensors import Item

app = typer.Typer(add_completion=False)

FORMATS: dict[str, Target] = {name: name for name in get_args(Target)}
RANDOM_ITEMS = 64
SEED = 0


class _Data(NamedTuple):
    """Items for calibration, and others to measure with, whose right answers may be known."""

    calibration: list[Item]
    measured: list[Item]
    labels: NDArray[np.int64] | None


Format = Annotated[
    str, typer.Option("--to", metavar="FORMAT", help=f"The number format: {' or '.join(FORMATS)}.")
]
Source = Annotated[
    str | None,
    typer.Option("--from", metavar="VARIANT", help="The variant to convert.", show_default="first"),
]
Items = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[NAME=]PATH[:ARRAY]",
        help="An .npy or .npz array of many typical items, for each input of the model; int8 "
        "needs them.",
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(metavar="PATH[:ARRAY]", help="The right answers: integers, one per item."),
]
Calibrate = Annotated[
    int,
    typer.Option(min=1, metavar="N", help="Items for calibration; the others are for measuring."),
]
MaxDrop = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, metavar="SHARE", help="The largest loss that is accepted."),
]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Name of the new variant.", show_default="VARIANT-FORMAT"),
]


@app.command(
    name="optimize",
    **COMMAND,
    epilog=examples(
        (
            "laxity optimize digits --input heldout.npz:images --labels heldout.npz:labels",
            "digits/large-int8, from the first variant, with its accuracy",
        ),
        ("laxity optimize digits --to fp16 --from small", "for GPUs and NPUs"),
        (
            "laxity optimize pair -i left=a.npy -i right=b.npy --max-drop 0.02",
            "two inputs; nobody knows the right answers, so agreement is measured",
        ),
    ),
)
def make_variant(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A model of the repository.")],
    to: Format = "int8",
    source: Source = None,
    inputs: Items = None,
    labels: Labels = None,
    calibrate: Calibrate = 128,
    max_drop: MaxDrop = 0.01,
    variant: Name = None,
    models: Annotated[Path, typer.Option(help="The model repository.")] = Path("models"),
    as_json: AsJson = False,
) -> None:
    """Make an int8 or fp16 variant, measure what it loses and gains, and add it to the model.

    It is added to model.yaml after the variant that it was made from, unless it loses more than
    --max-drop of the accuracy (without --labels: of the answers); then exit status is 1.
    """
    if to not in FORMATS:
        raise WrongUsage(f"--to {to!r}: accepted are {' and '.join(FORMATS)}")
    if to != "int8" and "calibrate" in given(ctx):
        raise WrongUsage(f"--calibrate goes with --to int8; {to} needs no ranges")
    if labels is not None and not inputs:
        raise WrongUsage("--labels are of items: name these with --input")
    model = _model(models, name)
    start = _variant(model, source)
    data = _data(model, to, inputs or [], labels, calibrate)
    wish = Wish(start, FORMATS[to], variant or f"{start.name}-{to}", max_drop)
    made = _make(models / name, model, wish, data)
    if as_json:
        print_json(
            {"model": name, "items": len(data.measured), "random": not inputs} | asdict(made)
        )
    else:
        _show(Console(highlight=False), name, made, len(data.measured), not inputs)
    if made.refused is not None:
        raise typer.Exit(1)


def _make(folder: Path, model: Model, wish: Wish, data: _Data) -> Made:
    samples = Samples(data.measured, data.labels)
    with Console(stderr=True).status(wish.name) as status:
        try:
            return optimise(folder, model, wish, data.calibration, samples, status.update)
        except (ConversionError, ModelFileError, ModelLoadError, RunError, OSError) as error:
            raise LaxityError(str(error)) from None


def _model(root: Path, name: str) -> Model:
    try:
        repository = load_repository(root)
    except RepositoryError as error:
        raise WrongUsage(f"--models: {error}") from None
    if name in repository.models:
        return repository.models[name]
    reasons = [problem.reason for problem in repository.problems if problem.model == name]
    why = "; ".join(reasons) or f"is not in {root} ({nearest(name, repository.models)})"
    raise WrongUsage(f"model {name!r}: {why}")


def _variant(model: Model, name: str | None) -> Variant:
    by_name = {variant.name: variant for variant in model.variants}
    if name is None:
        return model.variants[0]
    if name not in by_name:
        raise WrongUsage(f"{model.name} has no variant {name!r} ({nearest(name, by_name)})")
    return by_name[name]


def _data(model: Model, to: str, texts: list[str], labels: str | None, calibrate: int) -> _Data:
    """Loads the items and shuffles them with a seed, because files are often sorted by content."""
    if not texts:
        if to == "int8":
            raise WrongUsage(
                "int8 needs typical items, to see what ranges values have: name them with --input"
            )
        return _Data([], sample_items(model, RANDOM_ITEMS), None)
    specs = [asdict(spec) for spec in model.signature.inputs]
    items = load_items(texts, specs)
    right = None if labels is None else _labels(labels, len(items))
    order = np.random.default_rng(SEED).permutation(len(items))
    seen = min(calibrate, len(items) // 2) if to == "int8" else 0
    measured = order[seen:]
    return _Data(
        [items[i] for i in order[:seen]],
        [items[i] for i in measured],
        None if right is None else right[measured],
    )


def _labels(text: str, count: int) -> NDArray[np.int64]:
    array = load_array(text)
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise WrongUsage(
            f"--labels {text}: {array.dtype} {list(array.shape)}; expected integers [{count}], "
            "one for each item"
        )
    return array.astype(np.int64)


def _show(console: Console, name: str, made: Made, count: int, random: bool) -> None:
    of = f"{count} random items" if random else f"{count} items"
    found = made.losses
    console.print(f"{name}/{made.name}, made of {made.source}; measured on {of}", markup=False)
    table = plain_table("", made.source, made.name, right=(made.source, made.name))
    table.add_row("size, MB", *(figure(n / 1e6) for n in (made.source_bytes, made.size_bytes)))
    if found.accuracy is not None and found.accuracy_before is not None:
        table.add_row("accuracy", percent(found.accuracy_before), percent(found.accuracy))
    table.add_row("same answer", "", percent(found.agreement))
    table.add_row("mean deviation", "", percent(found.deviation))
    before = {speed.runtime: speed for speed in made.source_speeds}
    for speed in made.speeds:
        cells = (_p50(before[speed.runtime].p50_ms), _p50(speed.p50_ms))
        table.add_row(f"p50 ms, {speed.runtime}", *cells)
    console.print(table)
    for speed in made.speeds:
        if speed.fault is not None:
            text = f"{speed.runtime} would be refused for it here: {speed.fault}"
            console.print(text, style="yellow", markup=False)
    if made.refused is None:
        console.print(
            "added to model.yaml; a running box serves it once it is measured", style="green"
        )
    else:
        console.print(f"not added: {made.refused}", style="red", markup=False)


def _p50(value: float | None) -> str:
    return "" if value is None else figure(value)
