"""Splits: weighted versions, canaries, shadows and sticky callers of one model."""
