"""`laxity pull`: copies a model from another box or a remote folder into this repository."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from scheduler.cli.help import COMMAND, examples
from scheduler.cli.streams import AsJson, WrongUsage, print_json
from scheduler.client.arguments import token_to_send
from scheduler.errors import LaxityError
from scheduler.files import folder_fault
from scheduler.pulling import pull, source_of
from workers.model_yaml import NAME_PATTERN
from workers.repository import RepositoryError, load_repository

app = typer.Typer(add_completion=False)


@app.command(
    name="pull",
    **COMMAND,
    epilog=examples(
        (
            "laxity pull digits --from 10.0.0.7:8702",
            "from a box; LAXITY_TOKEN is sent to it",
        ),
        (
            "laxity pull digits --from https://models.example/line-3",
            "from a folder that has digits/SHA256SUMS, made there with sha256sum",
        ),
        (
            "laxity pull digits --from 10.0.0.7:8702 --replace",
            "update it to the files of that box",
        ),
        ("laxity pull digits --from s3://models/line-3", "the same, with pip install s3fs"),
    ),
)
def pull_model(
    name: Annotated[str, typer.Argument(help="The model's name.")],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL",
            help="A box's native door, or a folder: https://, s3://, gs://, ssh://, file:// …",
        ),
    ],
    models: Annotated[Path, typer.Option(help="The repository to put it into.")] = Path("models"),
    max_mb: Annotated[
        int, typer.Option(min=1, metavar="MB", help="Larger ones are refused, in 10^6 bytes.")
    ] = (4000),
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace other files of that name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a model from another box or a remote folder, verified by SHA-256.

    It appears in the repository once it is complete. A running agent serves it some seconds later,
    in place of what it replaces.
    """
    if re.fullmatch(NAME_PATTERN, name) is None or name.startswith("."):
        raise WrongUsage(f"{name!r} is no model name; names match {NAME_PATTERN}")
    if fault := folder_fault(models):
        raise WrongUsage(f"--models {models}: {fault}")
    try:
        found = source_of(source, name, token_to_send(None))
        with _progress() as tell:
            check = partial(_problem, name=name)
            fresh = pull(found, models, name, max_mb * 10**6, check, tell, replace=replace)
    except OSError as error:
        raise LaxityError(str(error)) from None
    place = str(models / name)
    if as_json:
        print_json({"model": name, "folder": place, "fresh": fresh})
    else:
        print(f"{place} is there" + ("" if fresh else " already, with the same files"))


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """Shows on a terminal how much of each file has arrived."""
    columns = TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn()
    console = Console(stderr=True)
    quiet = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(path: str, size: int) -> None:
            if path not in tasks:
                tasks[path] = bars.add_task(path, total=None)
            bars.update(tasks[path], completed=size)

        yield tell


def _problem(root: Path, name: str) -> str | None:
    """Why the repository's loader rejects a model; None if it is good."""
    try:
        repository = load_repository(root)
    except RepositoryError as error:
        return str(error)
    if name in repository.models:
        return None
    return "; ".join(problem.reason for problem in repository.problems) or "it has no model file"
