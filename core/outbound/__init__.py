"""Calls to other servers: which URLs may be called, at which address, and the spans that processes send."""
