"""The gRPC door, built on the stubs of tritonclient."""
