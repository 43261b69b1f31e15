"""What runs models: the repository, the runtimes, and the process that owns a device."""

from workers.opt_out import opt_out

opt_out()  # here, since no module of this package can import a runtime before
