"""TorchServe's protocol, archives, management, settings and command line."""

from penstock.extension import Extension, Panel, Verb

extension = Extension(
    "torchserve",
    gateway="penstock.extensions.torchserve.served:gateway",
    verbs={
        "torchserve": Verb(
            "penstock.extensions.torchserve.cli.start:app",
            "Start what `torchserve` would: its store, its settings, its addresses.",
            Panel.SERVE,
        )
    },
    settings={
        "torchserve": "penstock.extensions.torchserve.settings.table:TorchServeSettings",
        "workflows": "penstock.extensions.torchserve.settings.table:WorkflowTables",
    },
    version_settings="penstock.extensions.torchserve.settings.table:RegisteredFields",
    source_kinds=("penstock.extensions.torchserve.source_kind:archive_kind",),
    worker="penstock.extensions.torchserve.worker.part:worker_part",
)
