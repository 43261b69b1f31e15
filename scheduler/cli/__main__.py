"""The command `laxity`, and `python -m scheduler.cli`.

Separate from `scheduler.cli.main`, which takes a moment to import, so that Ctrl-C during the import
is handled too.
"""

import sys


def main() -> None:
    """Runs the command; see `scheduler.cli.main`."""
    try:
        from scheduler.cli.main import main as run

        run()  # imports more, and handles Ctrl-C itself once it has begun
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
