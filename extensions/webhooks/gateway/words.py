"""The word of a job that has a webhook. Few jobs have one, and a gateway of others loads no more than this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.broker.records import SubmitStatus
from penstock.errors import PenstockError
from penstock.extensions.webhooks.settings import WebhooksSettings, url_of_key, url_of_model
from penstock.gateway.jobs.extending import JobsHost, JobsPart, WordsPart
from penstock.job import Job

if TYPE_CHECKING:
    from penstock.gateway.jobs.submitting.draft import Draft

NAME = "webhooks"


class WebhookWords:
    """Reads what a request says of its webhook, and finds the webhook of a job that is replayed."""

    def __init__(self, host: JobsHost) -> None:
        self._settings = host.settings
        self._is_on = host.settings.extension(WebhooksSettings).is_on
        self._store = host.store

    def word(self, said: Mapping[str, str], draft: Draft, model: str) -> str:
        """Where the events of the job go. Raises `InvalidInput`."""
        url, events = said.get("webhook", ""), tuple(filter(None, said.get("webhook_events", "").split(",")))
        settings, caller = self._settings, draft.caller
        has_default = not draft.is_awaited and (url_of_key(caller.extension_settings) or url_of_model(settings, model))
        if not (url or events or has_default):
            return ""
        from penstock.extensions.webhooks.gateway.requested import webhook_of

        webhook = webhook_of(settings, url, events, caller=caller, model=model, letters=said.get("letters", ""))
        return webhook.text(caller.owner) if webhook is not None else ""

    async def kept(self, job: Job) -> str:
        """The new job's events go where those of the old one went."""
        if not self._is_on:
            return ""
        from penstock.extensions.webhooks.gateway.requested import kept_webhook

        webhook = await kept_webhook(self._settings, self._store, job)
        return webhook.text(job.owner) if webhook is not None else ""


def asked_webhook(url: str, letters: str) -> dict[str, dict[str, str]]:
    """What a request says of its webhook in a protocol with words of its own for events, which `letters` stand for."""
    return {NAME: {"webhook": url, "letters": letters}} if url else {}


def jobs(host: JobsHost) -> JobsPart:
    words = WebhookWords(host)
    refusals = {SubmitStatus.UNDELIVERED: _too_many}
    return JobsPart(words=WordsPart(words.word, is_asked=True, kept=words.kept, refusals=refusals))


def _too_many(model: str) -> PenstockError:
    from penstock.extensions.webhooks.gateway.requested import too_many_undelivered

    return too_many_undelivered(model)
