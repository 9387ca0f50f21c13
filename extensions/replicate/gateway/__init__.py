"""Replicate's protocol, translated: a prediction is a job (D85)."""
