"""History: what happened to models lately, as the store keeps it."""

from penstock.extension import Extension, Panel, Verb

extension = Extension(
    "history",
    functions="penstock.extensions.history:functions",
    gateway="penstock.extensions.history.gateway.routes:gateway",
    settings={"history": "penstock.extensions.history.settings:HistorySettings"},
    verbs={
        "history": Verb(
            "penstock.extensions.history.cli:app",
            "Show what happened to a model lately, step by step.",
            Panel.USE,
            asks_gateway=True,
        )
    },
    worker="penstock.extensions.history.worker:worker_part",
)
