"""The cloud tier of our own: a box's scheduler and workers as the replicas of a Ray Serve app."""
