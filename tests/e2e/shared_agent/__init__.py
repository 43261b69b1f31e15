"""Tests that share one agent; it ends when the last of them has, for an idle one takes time too."""
