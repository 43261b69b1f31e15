"""Workloads: when requests arrive and what they ask for, as seeded streams of any length."""

from replay.simulator import Arrival
from replay.workloads.amounts import Amount, Fixed, OneOf, Uniform
from replay.workloads.clients import Clients, ClientStream
from replay.workloads.describing import load_workload, parse_workload
from replay.workloads.errors import WorkloadError
from replay.workloads.mix import Mix, MixEntry
from replay.workloads.processes import (
    PROCESSES,
    Bursts,
    Cameras,
    Constant,
    Diurnal,
    Gamma,
    Poisson,
    Process,
    camera_ns,
    constant_ns,
    diurnal_ns,
    gamma_ns,
    mmpp_ns,
    poisson_ns,
)
from replay.workloads.workload import Setting, Stream, TraceStream, Workload, merge

__all__ = [
    "PROCESSES",
    "Amount",
    "Arrival",
    "Bursts",
    "Cameras",
    "ClientStream",
    "Clients",
    "Constant",
    "Diurnal",
    "Fixed",
    "Gamma",
    "Mix",
    "MixEntry",
    "OneOf",
    "Poisson",
    "Process",
    "Setting",
    "Stream",
    "TraceStream",
    "Uniform",
    "Workload",
    "WorkloadError",
    "camera_ns",
    "constant_ns",
    "diurnal_ns",
    "gamma_ns",
    "load_workload",
    "merge",
    "mmpp_ns",
    "parse_workload",
    "poisson_ns",
]
