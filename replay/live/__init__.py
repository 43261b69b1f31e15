"""Requests against a running box, in open and in closed loops."""
