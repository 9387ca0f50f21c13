"""Splits: weighted versions, canaries, shadows and sticky callers of one model."""

from penstock.extension import Extension, Verb

extension = Extension(
    "splits",
    functions="penstock.extensions.splits:functions",
    gateway="penstock.extensions.splits.gateway.routes:gateway",
    jobs="penstock.extensions.splits.gateway.part:jobs",
    verbs={
        "models split": Verb(
            "penstock.extensions.splits.cli:app", "Divide the calls that name no version: weights, a canary, a shadow."
        )
    },
)
