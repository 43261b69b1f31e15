"""Keep the runtimes' libraries from sending usage data to their makers.

From version 1.29 on, ONNX Runtime posts events of each process and session to
mobile.events.data.microsoft.com, and keeps a device id and a database of events in the home folder.
OpenVINO posts to www.google-analytics.com at every import, from a process that it forks for this,
and keeps an id as well. Both must be told not to before they are imported.

Sources: ONNX Runtime, docs/Privacy.md ("Disabling Telemetry"); OpenVINO's `openvino.tools.ovc`,
which works without the package `openvino_telemetry` where that can't be imported.
"""

from __future__ import annotations

import os
import sys


def opt_out() -> None:
    """Turn telemetry off for this process and for child processes that import `workers`."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    # None makes Python refuse the import; a module already imported stays.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
