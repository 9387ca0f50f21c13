"""Replicate's protocol and Cog's container contract, and Cog's predictors as handlers."""

from penstock.extension import Extension

extension = Extension(
    "replicate",
    gateway="penstock.extensions.replicate.cog.mount:gateway",
    modules={"cog": "penstock.extensions.replicate.child.surface:fill"},
)
