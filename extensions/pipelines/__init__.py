"""Pipelines: models that follow one another, which callers use as one model."""

from penstock.extension import Extension

extension = Extension("pipelines")
