"""The door that speaks HTTP/1.1."""
