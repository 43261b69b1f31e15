"""Probe a box's hardware in a separate process.

A library that is asked for devices loads the drivers of all kinds it knows. If one crashes or
hangs, only that process ends, and the libraries' memory is freed with it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from types import TracebackType

from edge_agent.accelerators import Found, nvidia_gpus, openvino_devices
from edge_agent.errors import AgentError
from edge_agent.hardware import Hardware, cuda_runtimes, probe
from scheduler.launching import launch_folder

PATIENCE_S = 120.0
"""How long to wait, in seconds; a first import from a slow memory card takes tens of seconds."""

COMMAND = (sys.executable, "-m", "edge_agent.probing")

_OPENVINO, _NVIDIA, _CUDA = "OpenVINO", "NVIDIA's driver", "ONNX Runtime or TensorRT"

_LEFT_OUT = ((), (_OPENVINO,), (_NVIDIA,), (_CUDA,), (_OPENVINO, _NVIDIA, _CUDA))
"""The libraries that are not asked, at each attempt."""


class Probing:
    """A process that probes this box, as `probe` does, while its caller goes on.

    Used as a context manager, it ends the process at the end of the block.

    Args:
        command: Writes what it finds, or its error, to its output as `main` does; its arguments are
            the names of libraries to leave out.
        patience_s: How long to wait for each attempt, in seconds.
    """

    def __init__(self, command: Sequence[str] = COMMAND, patience_s: float = PATIENCE_S) -> None:
        """Start the process."""
        self._command = command
        self._patience_s = patience_s
        self._process = self._started(())

    def __enter__(self) -> Probing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def wait(self) -> Hardware:
        """The hardware of this box; a library that ends the process is left out, with a note.

        Raises:
            AgentError: The process fails even without asking any library.
        """
        why = ""
        for left_out in _LEFT_OUT:
            if why:
                self._process = self._started(left_out)
            before, (found, why) = why, self._looked()
            if isinstance(found, Exception):
                raise found
            if found is not None:
                since = f"since the process that probed them {before}"
                notes = [f"{name} was not asked for devices, {since}" for name in left_out]
                return replace(found, notes=(*found.notes, *notes))
        raise AgentError(f"the hardware of this box can't be probed: the probing process {why}")

    def _started(self, left_out: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, *left_out],
            cwd=launch_folder(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )

    def _looked(self) -> tuple[Hardware | Exception | None, str]:
        """What the process found, or how it failed."""
        try:
            output, _ = self._process.communicate(timeout=self._patience_s)
        except subprocess.TimeoutExpired:
            self._end()
            return None, f"did not answer within {self._patience_s:g} s"
        if self._process.returncode:
            return None, f"ended with {_spelled(self._process.returncode)}"
        return pickle.loads(output), ""

    def _end(self) -> None:
        with self._process:  # waits for it
            self._process.kill()


def probe_apart(command: Sequence[str] = COMMAND, patience_s: float = PATIENCE_S) -> Hardware:
    """What `Probing` finds, for callers with nothing else to do meanwhile.

    Raises:
        AgentError: See `Probing.wait`.
    """
    with Probing(command, patience_s) as probing:
        return probing.wait()


def _spelled(returncode: int) -> str:
    if returncode > 0:
        return f"status {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def look(left_out: Collection[str]) -> Hardware:
    """Probe this box without asking some libraries."""
    return probe(
        openvino=Found if _OPENVINO in left_out else openvino_devices,
        nvidia=Found if _NVIDIA in left_out else nvidia_gpus,
        cuda=tuple if _CUDA in left_out else cuda_runtimes,
    )


def main() -> None:
    """Write what it finds to standard output, and send the libraries' own output to stderr."""
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        try:
            found: Hardware | Exception = look(sys.argv[1:])
        except Exception as error:
            found = error
        pickle.dump(found, output)


if __name__ == "__main__":
    main()
