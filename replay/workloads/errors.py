"""The error for a workload that can't be used."""

from __future__ import annotations


class WorkloadError(ValueError):
    """A workload can't be used; the message names the key and what would be accepted."""
