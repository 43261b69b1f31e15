"""`laxity models`: lists the models that a box can run."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from scheduler.cli.box import Url, box
from scheduler.cli.help import COMMAND, examples
from scheduler.cli.streams import AsJson, print_json
from scheduler.cli.tables import models_view
from scheduler.client.tasks import Plan, Question
from scheduler.core.names import did_you_mean
from scheduler.errors import ModelNotFound

app = typer.Typer(add_completion=False)


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity models", "all of them"),
        ("laxity models digits", "one of them"),
        ("laxity models --json | jq '.models[].name'", "for scripts"),
        ("laxity models digits --unload", "take it out of service at once"),
    ),
)
def models(
    name: Annotated[str | None, typer.Argument(help="Only this model.", show_default=False)] = None,
    load: Annotated[
        bool | None,
        typer.Option(
            "--load/--unload",
            help="Accept requests for this model again, or refuse them until then or until the "
            "scheduler restarts. Needs the scope admin.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List what a box can run: inputs, outputs, variants, and their latency on each target."""
    if load is not None and name is None:
        raise typer.BadParameter("say which model, as in: laxity models digits --unload")
    with box(url) as client:
        if load is not None:
            client.carry_out(_command("load" if load else "unload", str(name)))
        found = client.models()
    listed, problems = found["models"], found["problems"]
    if name is not None:
        listed = [model_called(name, found)]
        problems = [p for p in problems if p["model"].partition("/")[0] == name]
    if as_json:
        print_json({"models": listed, "problems": problems})
    else:
        Console().print(models_view(listed, problems))


def _command(kind: str, model: str) -> Plan:
    yield Question(kind, {"model": model})


def model_called(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """The model of that name; `found` is what a box answers that is asked for its models.

    Raises:
        ModelNotFound: There is none, and the message suggests a similar name; or it can't be
            served, and the message says why.
    """
    by_name: dict[str, dict[str, Any]] = {model["name"]: model for model in found["models"]}
    if name not in by_name:
        meant = did_you_mean(name, by_name, f"there are: {', '.join(by_name) or 'none yet'}")
        problems = ((each["model"], each["reason"]) for each in found["problems"])
        raise ModelNotFound.among(problems, name, f" ({meant})")
    return by_name[name]
