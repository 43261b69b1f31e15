"""`edge_agent`, run by a process that has imported already what the command needs.

That takes nearly all the time of a command line that is refused, as does the probing of the
hardware, which is done once here. Each command is a process of its own, with its own output and
exit status.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import edge_agent.agent
import edge_agent.main
from edge_agent.probing import COMMAND, Probing


class Forking:
    """Runs `edge_agent` with the words that it is called with.

    Args:
        folder: For the hardware that was found, and for what commands print.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.edge_agent.forked", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(words), file=self._server.stdin, flush=True)
        status = int(self._server.stdout.readline())
        stdout, stderr = ((self._folder / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(words, status, stdout, stderr)

    def close(self) -> None:
        with self._server:  # closes its input, at whose end it ends
            pass
        assert self._server.returncode == 0


def serve(folder: Path) -> None:
    """Forks for each line of words, and prints the exit status."""
    hardware = folder / "hardware"
    hardware.write_bytes(subprocess.check_output(COMMAND))
    vars(edge_agent.main)["Probing"] = partial(Probing, ("cat", str(hardware)))
    gc.freeze()  # or each process would look through all that was imported as it ends
    for line in sys.stdin:
        process = os.fork()
        if not process:
            files = Path(os.devnull), folder / "stdout", folder / "stderr"
            for number, path in enumerate(files):
                with path.open("wb" if number else "rb") as file:
                    os.dup2(file.fileno(), number)
            sys.argv = ["edge_agent", *json.loads(line)]
            signal.alarm(60)
            edge_agent.main.main()
            raise AssertionError("it ends by SystemExit")
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
