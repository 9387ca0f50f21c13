"""The meaning and remedy of each problem of the gateway: the page behind its `type`, and a section of the troubleshooting page.

It is loaded only for these pages. `python -m tests.pages` writes docs/production/troubleshooting.md from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.extension import installed, load_part
from penstock.gateway.asgi.problems import Explanation, titles

MANUAL = "docs/production/troubleshooting.md"
_ANSWER_NOW = "500 of an answer-now request, else 409"


EXPLANATIONS = {
    "bad_request": Explanation(
        "400",
        "The request is not valid JSON, is nested deeper than 64 levels, names a member twice, holds NaN, or "
        "has an unknown or unreadable parameter. `detail` names the place.",
        "Correct the request; sending it again does not help. `GET /openapi.json` has the form that each route takes.",
    ),
    "malformed_id": Explanation(
        "400",
        "The id in the path is none that penstock makes: it was cut, or belongs to another system.",
        "Use the `id` of the answer to the submit. `penstock jobs list` prints whole ids.",
    ),
    "unauthorized": Explanation(
        "401",
        "The gateway asks for an API key, and the request has none, an unknown one, or one that expired or was revoked.",
        "Send `Authorization: Bearer KEY`, or set `PENSTOCK_API_KEY` for the command and the client. `penstock keys list` "
        "shows which keys there are and until when.",
    ),
    "wrong_role": Explanation(
        "403",
        "The key is valid, but not for this route: a key has the roles `submit`, `read` and `manage`, or some of them.",
        "Use a key with the role that `detail` names; `penstock keys list` shows the roles.",
    ),
    "not_found": Explanation(
        "404",
        "No such path, model, version or job; or the job belongs to another owner.",
        "For a model, `hint` has names that are near, and `penstock models` lists all. For a job, check that the key is the "
        "one that submitted it.",
    ),
    "gone": Explanation(
        "410",
        "The job ended, and its result was kept for `result_ttl_s`, or `sync_result_ttl_s` after an answer-now request.",
        "Read results sooner, raise these settings of the model, or have them sent when the job ends.",
    ),
    "method_not_allowed": Explanation(
        "405",
        "The path exists, but not for this method.",
        "Use one of the methods in the header `Allow`.",
    ),
    "not_acceptable": Explanation(
        "406",
        "The header `Accept` names no media type that this answer can have, such as an event stream of a model that yields "
        "nothing.",
        "Leave `Accept` out, or name a type that `detail` lists.",
    ),
    "conflict": Explanation(
        "409",
        "The job, run or model is in a state that forbids it: a cancel after the end, a replay of a job that succeeded, a "
        "change of a model that no live worker can make.",
        "Look at the state first: `penstock jobs show JOB`, `penstock models show MODEL`.",
    ),
    "cancelled": Explanation(
        "409",
        "Somebody cancelled the job, or its answer-now caller hung up.",
        "Submit it again if it is still wanted. `penstock jobs show JOB` says when it was cancelled.",
    ),
    "expired": Explanation(
        "504 of an answer-now request, else 409",
        "The job's deadline passed while it waited or ran: `deadline_s` of the model, or that of the request.",
        "See where its time went with `penstock jobs show JOB`. If it waited, add workers; if the deadline is too short for "
        "the work, raise it.",
    ),
    "too_slow": Explanation(
        "408",
        "The head of the request took longer than 10 s, or its body longer than `gateway.body_timeout_s`.",
        "Send it again over a faster line, or raise these settings for clients that are slow by nature.",
    ),
    "too_large": Explanation(
        "413",
        "The body is larger than `gateway.max_json_bytes` (JSON) or `gateway.max_raw_bytes` (everything else).",
        "Send large inputs raw or as files of a form instead of base64 in JSON, send a URL, or raise the limit.",
    ),
    "unsupported_media_type": Explanation(
        "415",
        "The model does not take the `Content-Type`, or the route reads JSON and the request has another type or none.",
        "Send the type that `detail` names, for instance `-H 'Content-Type: application/json'`.",
    ),
    "range_not_satisfiable": Explanation(
        "416",
        "The header `Range` begins behind the end of the output.",
        "`Content-Range` has the size; ask for a part within it.",
    ),
    "not_supported": Explanation(
        "501",
        "A client of another protocol asked for a part of it that penstock does not have.",
        "`detail` names the part and, where there is one, what to use instead.",
    ),
    "cross_site": Explanation(
        "403",
        "A web page of another site had its visitor's browser send this request.",
        "If the page is yours, add its origin to `gateway.cors_origins`.",
    ),
    "wrong_host": Explanation(
        "421",
        "A gateway on loopback answers to names of loopback only, so that no web page can reach it by another name.",
        "Call it as `localhost` or `127.0.0.1`. To serve other names, set `gateway.host` and API keys.",
    ),
    "invalid_input": Explanation(
        "422 of a submit or an answer-now request, else 409",
        "The input is readable, but does not fit the types that the model asks for: `errors` has a pointer and a sentence per "
        "fault. Or the model refused it, with the code of a caller's error or one of its own that begins with `bad_` or "
        "`invalid_`, such as `bad_image`: `detail` has the model's words.",
        "Correct the input. `penstock models show MODEL` and `GET /openapi.json` have the schema.",
    ),
    "idempotency_key_reused": Explanation(
        "422",
        "The `Idempotency-Key` was sent before with another input or another model.",
        "Make a new key for each piece of work; repeat a key only with the same request.",
    ),
    "overloaded": Explanation(
        "429",
        "The model's queue is at `max_queue_depth`, or the job would most likely miss its deadline. `detail` says which.",
        "Callers: try again after `Retry-After`. Operators: `penstock models` shows what waits; add workers, or let `penstock "
        "tune MODEL` find better settings.",
    ),
    "rate_limited": Explanation(
        "429",
        "The key, or the address of a caller without one, sends more requests than `rate_per_s` and `burst` allow, or has its "
        "share of open requests, waits or uploads.",
        "Slow down: try again after `Retry-After`. Look at up to 100 jobs in one request (`GET /v1/jobs?ids=`), or wait "
        "instead of polling. Operators: raise `rate_per_s` of the key.",
    ),
    "quota_spent": Explanation(
        "429",
        "The owner has too many jobs that have not ended, runs, or files: `max_open_jobs` of its key, `runs.max_owner_runs`, "
        "`runs.max_owner_bytes`, 10,000 files.",
        "Wait until some have ended, cancel jobs or delete files; operators raise the quota.",
    ),
    "storage_full": Explanation(
        "507",
        "An upload or a large input would take from the `store.reserve_bytes` of disk space that are kept for the store.",
        "Free space on the disk of `store.blob_dir` and `store.files_dir`: `df -h`, shorter `result_ttl_s` and "
        "`runs.file_ttl_s`. Accepted jobs still run.",
    ),
    "headers_too_large": Explanation(
        "431",
        "More than 100 headers, more than 16 KiB of them, or a request target of more than 8 KiB.",
        "Send fewer: ask for at most 100 jobs in one request, and keep cookies of other services away from the gateway.",
    ),
    "gateway_busy": Explanation(
        "503",
        "This gateway process has as many requests, predictions, waits, uploads or connections open as it may.",
        "Callers: try again after `Retry-After`. Operators: more gateways or `gateway.processes`; the bounds are "
        "`max_requests`, `max_predictions`, `max_waits` and `max_connections`.",
    ),
    "store_unavailable": Explanation(
        "503",
        "The gateway cannot reach its Redis or Valkey, or the store refuses writes: it is down, its disk or memory is full, "
        "or a failover is under way. Nothing that was accepted is lost.",
        "Callers: try again after `Retry-After`. Operators: `penstock doctor` says what is wrong; then the store's own log "
        "and disk.",
    ),
    "no_worker": Explanation(
        "503",
        "An answer-now request found no slot that is ready to serve the model. `detail` says whether it still loads, could "
        "not be loaded, has no worker, or was scaled to no slots. A job that is submitted waits instead.",
        "`penstock workers` and `penstock models show MODEL` say what each worker does. Start a worker whose settings have "
        "the model, or read in its log why the model does not load.",
    ),
    "not_ready": Explanation(
        "503 of a probe",
        "The gateway stops, cannot reach its store, or a declared model has no ready worker.",
        "`curl -H 'Authorization: Bearer KEY' .../readyz` names what is missing; `?workers=false` asks whether jobs are taken.",
    ),
    "sync_timeout": Explanation(
        "504 of an answer-now request",
        "The model gave no answer within `gateway.sync_timeout_s` or the request's `deadline_s`. The job continues, and `job` "
        "is its id.",
        "Read the result later: `penstock jobs result JOB`. For work that takes long, submit jobs instead of waiting.",
    ),
    "timeout": Explanation(
        "504 of an answer-now request, else 409",
        "The batch was on the device for longer than `max_run_s` without a sign of life; its process was killed.",
        "Raise `max_run_s` if the work takes that long, or call `context.progress` within it. `penstock debug MODEL -i INPUT` "
        "runs it in your terminal.",
    ),
    "input_url_failed": Explanation(
        "422 of an answer-now request, else 409",
        "The worker could not fetch a file that the input names by URL: the host refused, did not answer, or is none that "
        "`input_urls` allows.",
        "Open the URL from the worker's machine. Allow the host in `input_urls` of the model, or send the file itself.",
    ),
    "oom": Explanation(
        "507 of an answer-now request, else 409",
        "One item alone does not fit the memory of its device. Batches that do not fit are halved first.",
        "Send a smaller input, raise `memory_limit_bytes`, or use a larger device. The worker's log shows the sizes that were "
        "tried.",
    ),
    "poison": Explanation(
        _ANSWER_NOW,
        "The process that ran the job crashed or was killed `max_crashes` times while it ran alone: the input kills the model.",
        "Run the input with `penstock debug MODEL -i INPUT`; `child_ended` in the worker's log says how the process ended. A "
        "kill by signal 9 without a message usually means that the machine ran out of memory.",
    ),
    "worker_lost": Explanation(
        _ANSWER_NOW,
        "The workers that ran the job were lost again and again, not the process that ran the model.",
        "Look at the machines: memory, network, preemption. `penstock workers` shows who is alive; `penstock jobs replay JOB` "
        "runs the job again.",
    ),
    "handler_error": Explanation(
        _ANSWER_NOW,
        "The model's code raised, or returned a `Failure`. `detail` has the class and message of the error. Other items of "
        "the batch are not affected.",
        "`penstock jobs show JOB --traceback` shows where, if the model has `keep_tracebacks`. `penstock debug MODEL -i "
        "INPUT` opens a debugger at the place.",
    ),
    "handler_contract": Explanation(
        _ANSWER_NOW,
        "A stage of the model returned no list, a list of another length than it got, or an output that JSON cannot hold, "
        "such as NaN.",
        "Return one output per input, in their order. `penstock debug MODEL -i INPUT` runs the batch here.",
    ),
    "stream_too_large": Explanation(
        _ANSWER_NOW,
        "The model yielded more than `max_stream_bytes` for one job.",
        "Raise `max_stream_bytes` of the model, or yield less and return the rest as the output.",
    ),
    "not_explainable": Explanation(
        "501",
        "`POST /explanations/{model}` was sent for a model that gives no explanations.",
        "`detail` says what would enable them: a torch model file with a task, or a handler with `explain`.",
    ),
    "load_failed": Explanation(
        "503 of an answer-now request, else 409",
        "The model could not be loaded: its `initialize` raised, a package or an environment variable is missing, or the "
        "cache of models has no room.",
        "`penstock models show MODEL` has the reason. `penstock config --check` finds what is missing before a start.",
    ),
    "failed": Explanation(
        _ANSWER_NOW,
        "The job failed, and its record has no code.",
        "`penstock jobs show JOB` has what is known of it.",
    ),
    "refused": Explanation(
        "as the protocol says",
        "A route of another protocol refused the request in the words of that protocol.",
        "`detail` is what its own server would say.",
    ),
    "internal": Explanation(
        "500",
        "A bug in penstock. The body never has the cause.",
        "Search the gateway's log for the `request_id`: the line `request_failed` has the traceback. Report it.",
    ),
}


def explanations() -> Mapping[str, Explanation]:
    """The explanations by code: ours, and those of extensions."""
    parts = [load_part(extension.problem_pages) for extension in installed() if extension.problem_pages]
    return EXPLANATIONS | {code: explanation for part in parts for code, explanation in part.items()}


def anchor(code: str) -> str:
    """The name of the problem's heading on the troubleshooting page."""
    title = "".join(letter for letter in titles()[code].lower() if letter.isalnum() or letter in " -_")
    return f"{title.replace(' ', '-')}-{code}"


def facts_of(code: str) -> dict[str, Any]:
    explanation = explanations()[code]
    return {
        "code": code,
        "title": titles()[code],
        "status": explanation.status,
        "cause": explanation.cause,
        "action": explanation.action,
        "manual": f"{MANUAL}#{anchor(code)}",
    }


def text_of(code: str) -> str:
    """The page as text."""
    facts = facts_of(code)
    return (
        f"{facts['title']} ({code}; status {facts['status']})\n\nCause: {facts['cause']}\n\nWhat to do: {facts['action']}\n\n"
        f"All problems: {facts['manual']}\n"
    )
