"""What a configuration file may say: one file per section, put together in `box.py`."""
