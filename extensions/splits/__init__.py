"""Splits: weighted versions, canaries, shadows and sticky callers of one model."""

from penstock.extension import Extension

extension = Extension("splits")
