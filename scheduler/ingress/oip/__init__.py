"""The Open Inference Protocol, apart from its transports."""
