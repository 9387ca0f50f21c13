"""Webhooks: events of jobs and runs, kept in an outbox and delivered to callers' URLs."""

from penstock.extension import Extension, Panel, Verb

extension = Extension(
    "webhooks",
    functions="penstock.extensions.webhooks:functions",
    gateway="penstock.extensions.webhooks.gateway.routes:gateway",
    jobs="penstock.extensions.webhooks.gateway.words:jobs",
    parameters={
        "webhook": {
            "description": "The URL to which the job's events are sent",
            "schema": {"type": "string", "format": "uri"},
        },
        "webhook_events": {
            "description": "Which events, joined by commas; without it, those of the job's end",
            "schema": {"type": "string"},
        },
    },
    verbs={
        "webhooks": Verb(
            "penstock.extensions.webhooks.cli:app",
            "Secrets of webhooks; events that were not delivered.",
            Panel.USE,
            asks_gateway=True,
        )
    },
    options={
        "call": "penstock.extensions.webhooks.cli:options_of_call",
        "keys new": "penstock.extensions.webhooks.cli:options_of_key",
    },
    settings={"webhooks": "penstock.extensions.webhooks.settings:WebhooksSettings"},
    key_settings="penstock.extensions.webhooks.settings:KeyWebhookFields",
    model_settings="penstock.extensions.webhooks.settings:WebhookFields",
)
