"""Metrics that a handler counts itself: what its code calls, and what is sent to the supervisor."""
