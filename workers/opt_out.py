"""Keeps the libraries of the runtimes from telling their makers how they are used.

ONNX Runtime, from 1.29 on, posts events of each process and session to
mobile.events.data.microsoft.com, and keeps an id of the device and a database of events in the home
folder. OpenVINO posts to www.google-analytics.com whenever it is imported, from a process that it
forks for that, and keeps an id as well. Both do unless they are told otherwise before the import.

Sources: ONNX Runtime, docs/Privacy.md ("Disabling Telemetry"); OpenVINO's `openvino.tools.ovc`,
which goes without the package `openvino_telemetry` where that can't be imported.
"""

from __future__ import annotations

import os
import sys


def opt_out() -> None:
    """Turns it off for this process and those that it starts with the package `workers`."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    # None is how Python notes what can't be imported; what is there already stays.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
