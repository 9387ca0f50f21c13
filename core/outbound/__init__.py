"""Calls to other servers: which URLs may be called, and at which address."""
