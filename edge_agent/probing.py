"""Finds out what a box has in a process of its own.

Asked for devices, a library loads the drivers of all it knows. One that crashes or hangs ends that
process alone, and the memory that the libraries took goes with it.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace

from edge_agent.accelerators import Found, nvidia_gpus, openvino_devices
from edge_agent.errors import AgentError
from edge_agent.hardware import Hardware, cuda_runtimes, probe

PATIENCE_S = 120.0
"""A first import from a slow card takes tens of seconds."""

COMMAND = (sys.executable, "-m", "edge_agent.probing")

_OPENVINO, _NVIDIA, _CUDA = "OpenVINO", "NVIDIA's driver", "ONNX Runtime or TensorRT"

_LEFT_OUT = ((), (_OPENVINO,), (_NVIDIA,), (_CUDA,), (_OPENVINO, _NVIDIA, _CUDA))
"""Who is not asked, at each attempt."""


def probe_apart(command: Sequence[str] = COMMAND, patience_s: float = PATIENCE_S) -> Hardware:
    """What this box has, as `probe` finds it; who ends its process is left out, and noted.

    Args:
        command: Writes what it finds, or the error that it met, to its output as `main` does; it is
            given the names of those to leave out.
        patience_s: For how long to wait for it.

    Raises:
        AgentError: It ends without asking anybody.
    """
    why = ""
    for left_out in _LEFT_OUT:
        before, (found, why) = why, _looked([*command, *left_out], patience_s)
        if isinstance(found, Exception):
            raise found
        if found is not None:
            since = f"since the process that looked for them {before}"
            notes = [f"{name} was not asked for devices, {since}" for name in left_out]
            return replace(found, notes=(*found.notes, *notes))
    raise AgentError(f"what this box has can't be found out: the process that looks {why}")


def _looked(command: Sequence[str], patience_s: float) -> tuple[Hardware | Exception | None, str]:
    """What was found, or how the process ended that looked."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=patience_s
        )
    except subprocess.TimeoutExpired:
        return None, f"did not answer within {patience_s:g} s"
    if done.returncode:
        return None, f"ended with {_spelled(done.returncode)}"
    return pickle.loads(done.stdout), ""


def _spelled(returncode: int) -> str:
    if returncode > 0:
        return f"status {returncode}"
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def look(left_out: Collection[str]) -> Hardware:
    """What this box has, without asking some."""
    return probe(
        openvino=Found if _OPENVINO in left_out else openvino_devices,
        nvidia=Found if _NVIDIA in left_out else nvidia_gpus,
        cuda=tuple if _CUDA in left_out else cuda_runtimes,
    )


def main() -> None:
    """Writes what it finds to the standard output, which libraries write to otherwise."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who waits for it
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        try:
            found: Hardware | Exception = look(sys.argv[1:])
        except Exception as error:
            found = error
        pickle.dump(found, output)


if __name__ == "__main__":
    main()
