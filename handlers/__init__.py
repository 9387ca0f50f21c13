"""Model code: the contract of a handler, loading a handler by name, the runtimes, the built-in tasks.

Knows nothing of queues. May import core only.
"""
