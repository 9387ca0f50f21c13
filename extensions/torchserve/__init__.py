"""TorchServe's protocol, archives, management, settings and command line."""

from penstock.extension import Extension, Panel, Verb

extension = Extension(
    "torchserve",
    verbs={
        "torchserve": Verb(
            "penstock.extensions.torchserve.cli.start:app",
            "Start what `torchserve` would: its store, its settings, its addresses.",
            Panel.SERVE,
        )
    },
)
