"""Readers of streams under faults, and what they may hear."""
