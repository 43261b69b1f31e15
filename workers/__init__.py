"""Model repository, runtimes, and the worker process that owns a device."""

from workers.opt_out import opt_out

opt_out()  # here, so that it runs before any module of this package imports a runtime
