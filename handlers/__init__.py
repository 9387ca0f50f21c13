"""Model code: the handler contract, its loading by name, the runtimes, the built-in tasks.

Knows nothing of queues. May import core only.
"""
