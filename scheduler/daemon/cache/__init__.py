"""The result cache in front of the driver: it keeps answers for identical requests.

A hit never reaches the core. A request that the cache can't answer, for whatever reason, goes on to
the driver as if there were no cache.
"""
