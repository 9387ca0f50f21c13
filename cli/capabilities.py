"""The verbs that capabilities bring, as their extensions will declare them; `penstock.cli.verbs` reads them here until then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.cli.command_entry import SERVE, USE, CommandEntry, Verbs


@dataclass(frozen=True, slots=True)
class Capability:
    """`verbs`: by their words; "models split" is a verb of the group `models`."""

    name: str
    verbs: Verbs = field(default_factory=dict)


DECLARED: Sequence[Capability] = (
    Capability(
        "torchserve",
        {
            "torchserve": CommandEntry(
                "penstock.extensions.torchserve.cli.start",
                "Start what `torchserve` would: its store, its settings, its addresses.",
                SERVE,
            ),
        },
    ),
    Capability(
        "webhooks",
        {
            "webhooks": CommandEntry(
                "penstock.extensions.webhooks.cli",
                "Secrets of webhooks; events that were not delivered.",
                USE,
                asks_gateway=True,
            )
        },
    ),
    Capability(
        "history",
        {
            "history": CommandEntry(
                "penstock.extensions.history.cli", "Show what happened to a model lately, step by step.", USE, asks_gateway=True
            )
        },
    ),
    Capability(
        "splits",
        {
            "models split": CommandEntry(
                "penstock.extensions.splits.cli", "Divide the calls that name no version: weights, a canary, a shadow."
            )
        },
    ),
)
