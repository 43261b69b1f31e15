"""The result cache: answers kept for those who ask the same again, in front of the driver.

A hit never reaches the core. What the cache can't answer, for whatever reason, goes on to the
driver as if there were no cache.
"""
