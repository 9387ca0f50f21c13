"""Replicate's protocol and Cog's container contract, and Cog's predictors as handlers."""

from penstock.extension import Extension

extension = Extension("replicate", modules={"cog": "penstock.extensions.replicate.child.surface:fill"})
