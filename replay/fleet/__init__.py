"""Fleets to simulate: what a scheduler is told about them, what is true, and how to read them."""
