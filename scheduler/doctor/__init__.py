"""Finds problems in a box's environment, and how to fix them."""
