"""The daemon on a box: probes the hardware, starts and supervises the scheduler and workers."""
