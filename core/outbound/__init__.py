"""Calls of servers elsewhere: which URLs may be called, at which address, and what webhooks tell there."""
