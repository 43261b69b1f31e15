"""The daemon on a box: finds the hardware, starts and supervises the scheduler and its workers."""
