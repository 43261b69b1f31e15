"""Data that ships with laxity: an example configuration and the demo's models."""
