"""Cog's container contract, translated: each model has a mount that answers as its container would (D88)."""
