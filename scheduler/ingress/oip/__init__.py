"""The Open Inference Protocol, apart from how it travels."""
