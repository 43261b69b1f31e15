"""`laxity token`: makes a token, and the hash that a box stores."""

from __future__ import annotations

import typer

from scheduler.cli.help import COMMAND, examples
from scheduler.cli.streams import AsJson, print_json
from scheduler.tenants import hash_of, new_token

app = typer.Typer(add_completion=False)


@app.command(
    **COMMAND,
    epilog=examples(
        ("laxity token", "the token for the caller, the hash for tenants_file or token_file"),
    ),
)
def token(as_json: AsJson = False) -> None:
    """Make a token of 256 random bits.

    Give the box only the hash. For a rotation put the hash of the new token beside the old
    one, give the caller the new token, then take the old hash out; nothing has to be restarted.
    """
    made = new_token()
    if as_json:
        print_json({"token": made, "hash": hash_of(made)})
    else:
        print(f"token  {made}\nhash   {hash_of(made)}")
