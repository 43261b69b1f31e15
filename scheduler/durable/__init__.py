"""Durable tasks: work that is on disk before it is accepted, and runs below all requests."""
