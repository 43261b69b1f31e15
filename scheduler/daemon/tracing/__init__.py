"""Traces of requests for an OpenTelemetry collector."""
