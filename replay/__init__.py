"""Workloads, the simulator and the live load generator."""
