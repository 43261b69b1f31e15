"""Targets beyond the box that speak the Open Inference Protocol."""
