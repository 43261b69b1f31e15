"""The Ray of a box: small, private, on loopback, gone when the agent is gone."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import ray

_OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Near Ray's minimum: tensors don't travel through the object store."""


class Cluster:
    """A one-box Ray cluster with token authentication and no dashboard.

    Args:
        cores: How many CPU cores Ray may count on.
    """

    def __init__(self, cores: int) -> None:
        """Starts Ray; takes some seconds."""
        # Ray puts unix sockets below it, and their paths may have 107 bytes at most.
        self._temp_dir = Path(tempfile.mkdtemp(prefix="laxity-ray-"))
        ray.init(
            address="local",
            num_cpus=max(1, cores),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            namespace="laxity",
            logging_level="WARNING",
            _node_ip_address="127.0.0.1",
            _temp_dir=str(self._temp_dir),
        )

    def stop(self) -> None:
        """Ends Ray and all its processes, and removes what it left on disk."""
        ray.shutdown()
        shutil.rmtree(self._temp_dir, ignore_errors=True)
