"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A slow or busy machine is no reason for a test to fail.
settings.register_profile("laxity", deadline=None)
settings.load_profile("laxity")
