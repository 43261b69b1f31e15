"""The Ray of a box: small, private, on loopback, gone when the agent is gone."""

from __future__ import annotations

import logging
from pathlib import Path

import ray

_OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Near Ray's minimum: tensors don't travel through the object store."""


class Cluster:
    """A one-box Ray cluster with no dashboard.

    Args:
        folder: Where Ray keeps its files and sockets.
        cores: How many CPU cores Ray may count on.
    """

    def __init__(self, folder: Path, cores: int) -> None:
        """Starts Ray; takes some seconds."""
        ray.init(
            address="local",
            num_cpus=max(1, cores),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            namespace="laxity",
            logging_level=logging.WARNING,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder),
        )

    def stop(self) -> None:
        """Ends Ray and all its processes."""
        ray.shutdown()
