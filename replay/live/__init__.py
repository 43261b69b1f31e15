"""Requests against a running box: sent when they are due, whatever comes back."""
