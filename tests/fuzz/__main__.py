"""`python -m tests.fuzz frames --seconds 600`: looks for bytes that break a parser.

Needs `pip install atheris` (Linux on x86-64). Inputs that reach new code, and those that break
something, are added to the corpus beside this file, which `make test` gives to every parser.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

try:
    import atheris
except ImportError:
    sys.exit("tests.fuzz needs atheris: pip install atheris")

with atheris.instrument_imports(include=["scheduler"]):
    from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


def main() -> None:
    """Fuzzes one target."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, help="where new inputs go, instead of the corpus")
    given = parser.parse_args()
    seeds = CORPUS / given.target
    work = given.work or seeds
    work.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={given.seconds}",
        f"-seed={given.seed}",
        "-max_len=2048",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={work}/broken-",
    ]
    atheris.Setup([sys.argv[0], *options, str(work), str(seeds)], TARGETS[given.target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
