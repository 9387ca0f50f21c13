"""Pipelines: models that follow one another, as settings declare them. Pure."""
