"""Measurements, always as a ratio to something run in the same minutes on the same machine."""
