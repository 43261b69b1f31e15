"""Measurements, always as a ratio to a baseline run in the same minutes on the same machine."""
