"""The door that speaks gRPC, with the stubs of tritonclient."""
