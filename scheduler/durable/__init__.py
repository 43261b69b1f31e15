"""Durable tasks: work that is on disk before it is accepted, and yields to every request."""
