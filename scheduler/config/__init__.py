"""The configuration file: its larger sections, and the whole in `box.py`."""
