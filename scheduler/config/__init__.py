"""What a configuration file may say: its larger sections, and `box.py` with the whole."""
