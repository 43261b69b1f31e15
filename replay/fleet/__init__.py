"""Fleets to simulate: what a scheduler is told of them, what is true, and where they come from."""
