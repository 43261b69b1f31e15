"""laxity's own cloud tier: a box's scheduler and workers as replicas of a Ray Serve app."""
