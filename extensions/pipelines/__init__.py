"""Pipelines: models that follow one another, which callers use as one model."""
