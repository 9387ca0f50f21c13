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
    problems={
        "bad_archive": "The model archive cannot be used",
        "prediction_exception": "The model refused this input",
        "bad_output_type": "The model returned no list",
        "bad_output_length": "The model returned a list of another length",
        "bad_output_value": "The model returned a value that cannot be sent",
    },
    problem_pages="penstock.extensions.torchserve.gateway.errors:EXPLANATIONS",
    worker="penstock.extensions.torchserve.worker.part:worker_part",
)
