"""What runs models: the repository, the runtimes, and the process that owns a device."""
