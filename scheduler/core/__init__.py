"""The pure core: events in, commands out. No clock, I/O, randomness, logging or threads."""
