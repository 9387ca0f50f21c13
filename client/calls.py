"""The HTTP calls of both clients, as values: jobs, lists, and changes of a model while it runs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack
from urllib.parse import quote

from penstock.client.protocol import JSON, LONGEST_POLL_S, PROBLEM, HttpCall, InputBody
from penstock.client.views import JobView
from penstock.errors import BadRequest
from penstock.job import Priority
from penstock.outputs.bundle import MULTIPART

MANY_IDS = 100  # the most that a gateway reads in one request
# The most rows that a gateway takes in one submit, and a part of the bytes.
MANY_ROWS, MANY_BYTES = 1_000, 8 << 20
LINES = "application/x-ndjson"
# The most ids of events, or of failed jobs, that a gateway takes in one request.
MANY_AT_ONCE = 1_000
# The gateway's limit of jobs per page.
LARGEST_PAGE = 200
# A bundle comes with its files in one answer. Refusals come in our form, even on paths of another protocol.
_WITH_FILES = {"accept": f"{MULTIPART}, {PROBLEM}, */*"}
# A date and time with its offset from UTC, or Unix seconds.
Moment = datetime | float


class JobOptions(TypedDict, total=False):
    """The options of a job besides its input; `AsyncClient.submit` describes them."""

    version: str | None
    priority: Priority | str | None
    deadline_s: float | None
    idempotency_key: str | None
    delay_s: float | None
    not_before: Moment | None
    tags: Sequence[str]
    webhook: str | None
    webhook_events: Sequence[str]


def submit_call(model: str, body: InputBody, **options: Unpack[JobOptions]) -> HttpCall:
    """Carries a fresh idempotency key if the caller gives none, so that a repeat cannot create a second job.

    Raises `TypeError` for an option that does not exist.
    """
    _refuse_unknown(options)
    version, deadline_s = options.get("version"), options.get("deadline_s")
    key = options.get("idempotency_key") or uuid.uuid4().hex
    path = f"/v1/models/{_part(model)}" + (f"/versions/{_part(version)}" if version else "") + "/jobs"
    return HttpCall(
        "POST",
        path,
        params=_params(options),
        headers={"content-type": body.content_type, "idempotency-key": key},
        content=body.content,
        patience_s=deadline_s,
    )


def _refuse_unknown(options: JobOptions) -> None:
    unknown = sorted(options.keys() - JobOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"a submit has no option {unknown[0]!r}; it takes {', '.join(JobOptions.__annotations__)}")


def _params(options: JobOptions) -> dict[str, str]:
    priority, deadline_s, tags = options.get("priority"), options.get("deadline_s"), options.get("tags")
    params = {} if priority is None else {"priority": str(priority)}
    params |= {} if deadline_s is None else {"deadline_s": _seconds(deadline_s)}
    params |= _start(options.get("delay_s"), options.get("not_before"))
    params |= _webhook(options.get("webhook"), options.get("webhook_events") or ())
    return params | ({"tags": joined(tags)} if tags else {})


def submit_many_call(model: str, rows: Sequence[bytes], **options: Unpack[JobOptions]) -> HttpCall:
    """One job per row of JSON, all or none. Carries an idempotency key like a submit."""
    call = submit_call(model, InputBody(LINES, b"\n".join(rows)), **options)
    return replace(call, url=f"{call.url}:batch")


def groups(rows: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The rows in as few groups as the gateway's limits allow."""
    group: list[bytes] = []
    size = 0
    for row in rows:
        if group and (len(group) == MANY_ROWS or size + len(row) > MANY_BYTES):
            yield group
            group, size = [], 0
        group.append(row)
        size += len(row) + 1
    if group:
        yield group


def ended_call(ids: Sequence[str], *, wait_s: float, outputs: bool = False) -> HttpCall:
    """Returns these jobs as soon as one of them has ended; at most `MANY_IDS`. `outputs`: with outputs that are small."""
    call = _waiting("GET", "/v1/jobs", wait_s)
    return replace(call, params={**call.params, "ids": ",".join(ids)} | ({"outputs": "true"} if outputs else {}))


def predict_call(model: str, body: InputBody, *, version: str | None = None, deadline_s: float | None = None) -> HttpCall:
    # The gateway holds this call until the model has run; without a deadline, for its default limit of 60 s.
    return HttpCall(
        "POST",
        f"/predictions/{_part(model)}" + (f"/{_part(version)}" if version else ""),
        params={"deadline_s": _seconds(deadline_s)} if deadline_s is not None else {},
        headers={"content-type": body.content_type, **_WITH_FILES},
        content=body.content,
        wait_s=deadline_s if deadline_s is not None else 60.0,
        repeatable=False,
        patience_s=deadline_s,
    )


def job_call(job_id: str) -> HttpCall:
    return HttpCall("GET", f"/v1/jobs/{_part(job_id)}")


def poll_call(job: JobView, *, wait_s: float = 0.0) -> HttpCall:
    return _waiting("GET", job.links.get("self") or f"/v1/jobs/{_part(job.id)}", wait_s)


def result_call(job: JobView, *, wait_s: float = 0.0) -> HttpCall:
    call = _waiting("GET", job.links.get("result") or f"/v1/jobs/{_part(job.id)}/result", wait_s)
    return replace(call, headers=_WITH_FILES)


def timeline_call(job_id: str) -> HttpCall:
    return HttpCall("GET", f"/v1/jobs/{_part(job_id)}/timeline")


def traceback_call(job_id: str) -> HttpCall:
    return HttpCall("GET", f"/v1/jobs/{_part(job_id)}/traceback")


def cancel_call(job: JobView) -> HttpCall:
    return HttpCall("POST", job.links.get("cancel") or f"/v1/jobs/{_part(job.id)}/cancel")


def cancel_tagged_call(tag: str, model: str | None, after: str) -> HttpCall:
    params = {"tag": tag} | ({} if model is None else {"model": model}) | ({"after": after} if after else {})
    return HttpCall("POST", "/v1/jobs:cancel", params=params)


def replay_call(job: JobView, *, version: str | None = None, idempotency_key: str | None = None) -> HttpCall:
    """Carries a fresh idempotency key if the caller gives none, as a submit does."""
    return HttpCall(
        "POST",
        job.links.get("replay") or f"/v1/jobs/{_part(job.id)}/replay",
        params={"version": version} if version else {},
        headers={"idempotency-key": idempotency_key or uuid.uuid4().hex},
    )


def page_call(*, model: str | None, status: str | None, after: str | None, limit: int, tag: str | None = None) -> HttpCall:
    wanted = {"model": model, "status": status, "tag": tag, "after": after}
    params = {name: value for name, value in wanted.items() if value}
    return HttpCall("GET", "/v1/jobs", params={**params, "limit": str(min(limit, LARGEST_PAGE))})


def many_calls(job_ids: Iterable[str]) -> Iterator[HttpCall]:
    """The fewest calls that read all these jobs."""
    wanted = list(job_ids)
    for first in range(0, len(wanted), MANY_IDS):
        yield HttpCall("GET", "/v1/jobs", params={"ids": ",".join(wanted[first : first + MANY_IDS])})


def webhook_secret_call() -> HttpCall:
    return HttpCall("GET", "/v1/webhooks/secret")


def event_log_call(job_or_run: str) -> HttpCall:
    # A job's id ends with its model; a run's id is one word.
    kind = "jobs" if "-" in job_or_run else "runs"
    return HttpCall("GET", f"/v1/{kind}/{_part(job_or_run)}/deliveries")


def undelivered_call(after: str) -> HttpCall:
    return HttpCall("GET", "/v1/webhooks/undelivered", params={"after": after} if after else {})


def event_calls(verb: str, ids: Iterable[str]) -> Iterator[HttpCall]:
    """The fewest calls that replay or dismiss the events of all these jobs and runs."""
    return _calls_of_ids(f"/v1/webhooks/{verb}", ids)


def dismiss_calls(jobs: Iterable[str]) -> Iterator[HttpCall]:
    """The fewest calls that take all these jobs off the failed inbox."""
    return _calls_of_ids("/v1/failed:dismiss", jobs)


def _calls_of_ids(path: str, ids: Iterable[str]) -> Iterator[HttpCall]:
    wanted = list(ids)
    for first in range(0, len(wanted), MANY_AT_ONCE):
        content = json.dumps({"ids": wanted[first : first + MANY_AT_ONCE]}).encode()
        yield HttpCall("POST", path, headers={"content-type": JSON}, content=content)


def dismiss_all_call(model: str, group: str, before: str) -> HttpCall:
    chosen = {"model": model, **{name: text for name, text in (("group", group), ("before", before)) if text}}
    return _change("POST", "/v1/failed:dismiss", chosen)


def failed_call(model: str | None, after: str) -> HttpCall:
    """Its answer is read line by line."""
    return HttpCall("GET", "/v1/failed", params={name: text for name, text in (("model", model), ("after", after)) if text})


def add_key_call(key_id: str, roles: Sequence[str], settings: Mapping[str, Any]) -> HttpCall:
    """`settings`: of a key's table; None: the gateway's default."""
    given = {name: value for name, value in settings.items() if value is not None}
    return _change("POST", "/v1/keys", {**given, "id": key_id, "roles": list(roles)})


def keys_call() -> HttpCall:
    return HttpCall("GET", "/v1/keys")


def revoke_key_call(key_id: str) -> HttpCall:
    return HttpCall("DELETE", f"/v1/keys/{_part(key_id)}", repeatable=False)


def models_call() -> HttpCall:
    return HttpCall("GET", "/v1/models")


def queues_call() -> HttpCall:
    return HttpCall("GET", "/v1/queues")


def ready_call() -> HttpCall:
    return HttpCall("GET", "/readyz")


def workers_call() -> HttpCall:
    return HttpCall("GET", "/v1/workers")


def model_call(model: str) -> HttpCall:
    return HttpCall("GET", _model_path(model))


def load_call(model: str, version: str, source: str, *, settings: Mapping[str, Any]) -> HttpCall:
    """`source` is a path below the workers' `model_dir`. `settings` are keys of a version's table."""
    return _change("POST", f"{_model_path(model)}/versions", {**settings, "version": version, "source": source})


def switch_call(model: str, version: str) -> HttpCall:
    return _change("PUT", f"{_model_path(model)}/default", {"version": version})


def unload_call(model: str, version: str) -> HttpCall:
    return HttpCall("DELETE", f"{_model_path(model)}/versions/{_part(version)}", repeatable=False)


def scale_call(model: str, slots: int | Literal["auto"], version: str | None) -> HttpCall:
    return _change("PUT", f"{_model_path(model)}/workers", {"workers": slots, **({"version": version} if version else {})})


def unload_model_call(model: str) -> HttpCall:
    return HttpCall("DELETE", _model_path(model), repeatable=False)


def rollout_call(model: str) -> HttpCall:
    return HttpCall("GET", f"{_model_path(model)}/rollout")


def reset_call(model: str) -> HttpCall:
    return HttpCall("DELETE", f"{_model_path(model)}/rollout")


def split_call(
    model: str,
    weights: Mapping[str, float] | None,
    sticky: str,
    shadow: Mapping[str, Any] | None,
    canary: Mapping[str, Any] | None,
) -> HttpCall:
    """Empty members are left out. A repeat of the call makes the same split."""
    said = {"weights": weights, "sticky": sticky, "shadow": shadow, "canary": canary}
    return _change("PUT", f"{_model_path(model)}/split", {name: value for name, value in said.items() if value})


def split_view_call(model: str) -> HttpCall:
    return HttpCall("GET", f"{_model_path(model)}/split")


def end_split_call(model: str) -> HttpCall:
    return HttpCall("DELETE", f"{_model_path(model)}/split", repeatable=False)


def history_call(model: str | None, range_s: int | None, since: Moment | None, until: Moment | None) -> HttpCall:
    params = {} if range_s is None else {"range_s": str(range_s)}
    params |= {} if since is None else {"from": _moment(since, "since")}
    params |= {} if until is None else {"to": _moment(until, "until")}
    return HttpCall("GET", f"{_model_path(model)}/history" if model else "/v1/history", params=params)


def ask_profile_call(model: str, version: str | None) -> HttpCall:
    return HttpCall("POST", f"{_model_path(model)}/profile", params={"version": version} if version else {})


def profile_call(model: str) -> HttpCall:
    return HttpCall("GET", f"{_model_path(model)}/profile")


def _waiting(method: str, url: str, wait_s: float) -> HttpCall:
    # A poll shorter than the maximum is the last one: the caller's timeout ends with it.
    patience_s = wait_s if 0.0 < wait_s < LONGEST_POLL_S else None
    return HttpCall(method, url, params={"wait": _seconds(wait_s)} if wait_s > 0 else {}, wait_s=wait_s, patience_s=patience_s)


def _part(text: str) -> str:
    return quote(text, safe="")


def act_call(kind: str, name: str, act: str) -> HttpCall:
    """An operator's act on one of the `models` or `workers`, which is safe to repeat."""
    return HttpCall("POST", f"/v1/{kind}/{_part(name)}/{act}", repeatable=True)


def limits_call(model: str, limits: Mapping[str, float | None]) -> HttpCall:
    return _change("PUT", f"{_model_path(model)}/limits", limits)


def audit_call(before: int | None, limit: int) -> HttpCall:
    params = {"limit": str(limit)} if before is None else {"limit": str(limit), "before": str(before)}
    return HttpCall("GET", "/v1/audit", params=params)


def _seconds(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def joined(tags: Sequence[str]) -> str:
    """Raises `BadRequest` for a text instead of a list of tags, and for a comma, which would split a tag in two."""
    if isinstance(tags, str) or any("," in tag for tag in tags):
        raise BadRequest(f"tags is a list of words without commas, not {tags!r}", hint="For instance tags=['nightly'].")
    return ",".join(tags)


def _webhook(url: str | None, events: Sequence[str]) -> dict[str, str]:
    """Raises `BadRequest` for a text instead of a list of events."""
    if isinstance(events, str):
        raise BadRequest(f"webhook_events is a list, not {events!r}", hint="For instance webhook_events=['job.failed'].")
    named = {} if url is None else {"webhook": url}
    return named | ({"webhook_events": ",".join(events)} if events else {})


def _start(delay_s: float | None, not_before: Moment | None) -> dict[str, str]:
    """The parameters that say when a job may start."""
    start = {} if delay_s is None else {"delay_s": _seconds(delay_s)}
    return start if not_before is None else {**start, "not_before": _moment(not_before, "not_before")}


def _moment(at: Moment, name: str) -> str:
    """Unix seconds; raises `BadRequest` for a moment without an offset from UTC."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise BadRequest(f"{name} has no offset from UTC", hint="For instance datetime.now(UTC) + timedelta(hours=2).")
        at = at.timestamp()
    return _seconds(at)


def _change(method: str, path: str, body: Mapping[str, Any]) -> HttpCall:
    # Loading a version twice is a conflict, so after a lost answer the caller must decide, not the client.
    return HttpCall(method, path, headers={"content-type": JSON}, content=json.dumps(body).encode(), repeatable=method == "PUT")


def _model_path(model: str) -> str:
    return f"/v1/models/{_part(model)}"
