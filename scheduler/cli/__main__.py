"""The command `laxity`, and `python -m scheduler.cli`.

Apart from `scheduler.cli.main`, which takes a moment to be loaded: Ctrl-C in it is one like any.
"""

import sys


def main() -> None:
    """Runs the command; see `scheduler.cli.main`."""
    try:
        from scheduler.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
