"""History: what happened to models lately, as the store keeps it."""

from penstock.extension import Extension

extension = Extension("history")
