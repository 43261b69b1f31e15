"""The command `edge_agent`, and `python -m edge_agent`.

Separate from `edge_agent.main`, which takes a moment to import, so that Ctrl-C during the import is
handled too.
"""

import sys


def main() -> None:
    """Runs the command; see `edge_agent.main`."""
    try:
        from edge_agent.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
