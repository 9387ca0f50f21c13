"""Histories from a Prometheus that scrapes this deployment: for times that the store does not keep."""

# D121: docs/design/gateway.md

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from penstock.errors import BadRequest, CapacityError
from penstock.extensions.history.gateway.view import SHARES, rounded
from penstock.extensions.history.gateway.window import HistoryRange, HistoryWindow, ends_of, refuse_no_time, window_of
from penstock.outbound.pinned import trust

# No shorter ones: a rate takes two scrapes, which may be minutes apart.
LENGTHS_S = (300, 1_800, 7_200, 21_600, 86_400)
_MOST_STEPS = 366
_TIMEOUT_S = 10.0
_MOST_BYTES = 4 << 20
_AT_ONCE = 6
_STATUSES = ("succeeded", "failed", "cancelled", "expired")
_BY = {"ended": "status", "releases": "reason"}


class PrometheusUnavailable(CapacityError):
    kind = "prometheus_unavailable"


class PrometheusHistory:
    """`matchers`: labels that every series of this deployment has, as PromQL writes them; empty: no others are scraped.

    However many ask, Prometheus gets a few questions of a gateway at once. Who waits too long for that gets an error.
    """

    def __init__(self, url: str, matchers: str = "", *, lengths_s: Sequence[int] = LENGTHS_S) -> None:
        self._url = url.rstrip("/")
        self._matchers = matchers
        self._lengths_s = lengths_s
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._trust: ssl.SSLContext | None = None

    async def read(self, model: str, asked: HistoryRange, now: float) -> dict[str, Any]:
        """The body of `GET /v1/history`, of steps that are over. Raises `BadRequest`, `PrometheusUnavailable`."""
        window = steps_of(asked, now, self._lengths_s)
        wanted = queries(model, self._matchers, window.length_s)
        # Certificates take too long to load for the loop of a gateway.
        if self._trust is None:
            loaded: ssl.SSLContext = await asyncio.to_thread(trust, "")
            self._trust = loaded
        try:
            async with asyncio.timeout(_TIMEOUT_S), _client(self._trust) as client:
                asks = (self._ask(client, query, window) for query in wanted.values())
                answers = [_checked(one) for one in await asyncio.gather(*asks, return_exceptions=True)]
        except TimeoutError:
            raise PrometheusUnavailable(f"the Prometheus at {self._url} did not answer within {_TIMEOUT_S:.0f} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise PrometheusUnavailable(f"the Prometheus at {self._url} does not answer: {type(error).__name__}") from error
        return body(model, window, dict(zip(wanted, answers, strict=True)))

    async def _ask(self, client: httpx2.AsyncClient, query: str, window: HistoryWindow) -> list[dict[str, Any]]:
        length = window.length_s
        # A rate at the end of a step is that of the step.
        form = {"query": query, "start": window.at[0] + length, "end": window.at[-1] + length, "step": length}
        async with self._gate, client.stream("POST", f"{self._url}/api/v1/query_range", data=form) as answer:
            text = bytearray()
            async for chunk in answer.aiter_bytes():
                text += chunk
                if len(text) > _MOST_BYTES:
                    raise PrometheusUnavailable(f"the Prometheus at {self._url} answered with more than {_MOST_BYTES} bytes")
        return series_of(bytes(text), f"the Prometheus at {self._url} answered with status {answer.status_code}")


def _client(verify: ssl.SSLContext) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(verify=verify, trust_env=False, timeout=_TIMEOUT_S)


def _checked(answer: list[dict[str, Any]] | BaseException) -> list[dict[str, Any]]:
    if isinstance(answer, BaseException):
        raise answer
    return answer


def steps_of(asked: HistoryRange, now: float, lengths_s: Sequence[int] = LENGTHS_S) -> HistoryWindow:
    """Steps that are over by `now`, of the shortest length of which there are not too many. Raises `BadRequest`."""
    refuse_no_time(asked, now)
    since, until = ends_of(asked, now)
    length = next((length for length in lengths_s if until - since <= length * _MOST_STEPS), None)
    if length is None:
        raise BadRequest(f"a history has at most {_MOST_STEPS} steps of {lengths_s[-1]} s; this is a longer time")
    over = min(until, now - now % length)
    if since >= over:
        raise BadRequest(f"no step of {length} s is over since then", hint="Ask for a longer time, or for source=store.")
    return window_of(asked, length, over)


def queries(model: str, matchers: str, length_s: int) -> dict[str, str]:
    """What is asked of Prometheus, by name. Gateways report the same of the store, so theirs is the max; workers add up."""
    of_model = (f"model={json.dumps(model)}",) if model else ()
    labels = ",".join((*of_model, *((matchers,) if matchers else ())))

    def over(name: str) -> str:
        return f"penstock_{name}{{{labels}}}[{length_s}s]"

    def times(name: str, share: float) -> str:
        return f"histogram_quantile({share}, sum by (le) (rate({over(f'{name}_seconds_bucket')})))"

    found = {
        "accepted": f"sum(max by (model) (rate({over('jobs_accepted_total')})))",
        "ended": f"sum by (status) (max by (model, status) (rate({over('jobs_total')})))",
        **{f"total_s {name}": times("job_duration", share) for name, share in SHARES.items()},
        **{f"queue_s {name}": times("queue_wait", share) for name, share in SHARES.items()},
        "waiting": f"sum(max by (model, priority) (max_over_time({over('queue_depth')})))",
        "oldest_s": f"max(max_over_time({over('queue_oldest_age_seconds')}))",
        "running": f"sum(max by (model) (max_over_time({over('jobs_in_flight')})))",
        "batch_size": f"sum(rate({over('batch_size_sum')})) / sum(rate({over('batch_size_count')}))",
        "releases": f"sum by (reason) (rate({over('batch_flush_total')}))",
        "busy_share": f"sum(rate({over('slot_busy_seconds_total')})) / sum(avg_over_time({over('worker_up')}))",
        "slots": f"sum(max by (model) (max_over_time({over('slots_ready')})))",
    }
    if model:
        found["memory_bytes"] = f"sum(max_over_time({over('child_resident_bytes')}))"
        found["workers"] = f"count(sum by (worker) (max_over_time({over('worker_up')})) > 0)"
    else:
        # A GPU's series does not say which models use it.
        found["device_busy_share"] = f"avg(avg_over_time({over('device_utilization_ratio')}))"
    return found


def series_of(text: bytes, refusal: str) -> list[dict[str, Any]]:
    """The series of an answer of Prometheus; raises `PrometheusUnavailable` with the reason that it gives."""
    try:
        answer = json.loads(text)
        if answer["status"] == "success":
            return list(answer["data"]["result"])
        why = f": {str(answer.get('error', ''))[:200]}"
    except (ValueError, KeyError, TypeError):
        why = ", which is no answer of Prometheus"
    raise PrometheusUnavailable(refusal + why, hint="gateway.prometheus_url is the address without /api/v1.")


def body(model: str, window: HistoryWindow, found: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """As `GET /v1/history` has it from the store. How far a percentile may be off is not known."""
    lists = {name: _by_label(series, _BY.get(name, ""), window) for name, series in found.items()}
    none: list[float | None] = [None] * len(window.at)

    def only(name: str) -> list[float | None]:
        return lists.get(name, {}).get("", none)

    shown: dict[str, Any] = {
        "model": model or None,
        "source": "prometheus",
        "step_s": window.length_s,
        "percentile_error": None,
        "at": list(window.at),
        "accepted_per_s": only("accepted"),
        **{f"{status}_per_s": lists["ended"].get(status, none) for status in _STATUSES},
        **{name: {share: only(f"{name} {share}") for share in SHARES} for name in ("total_s", "queue_s")},
        **{name: only(name) for name in ("waiting", "oldest_s", "running", "batch_size")},
        "releases": _shares(lists["releases"]),
        "busy_share": [None if share is None else min(1.0, share) for share in only("busy_share")],
        **{name: only(name) for name in ("device_busy_share", "slots")},
    }
    return shown | ({name: only(name) for name in ("memory_bytes", "workers")} if model else {})


def _by_label(series: list[dict[str, Any]], label: str, window: HistoryWindow) -> dict[str, list[float | None]]:
    return {one["metric"].get(label, "") if label else "": _values(one["values"], window) for one in series}


def _values(values: list[tuple[float, str]], window: HistoryWindow) -> list[float | None]:
    known = {int(at) - window.length_s: float(text) for at, text in values}
    # NaN where a rate of nothing was divided by a rate of nothing; infinite in the last bucket.
    return [rounded(value) if abs(value := known.get(at, float("nan"))) < float("inf") else None for at in window.at]


def _shares(rates: dict[str, list[float | None]]) -> dict[str, list[float | None]]:
    totals = [sum(rate or 0.0 for rate in step) for step in zip(*rates.values(), strict=True)]
    return {
        reason: [rounded((rate or 0.0) / total) if total else None for rate, total in zip(values, totals, strict=True)]
        for reason, values in sorted(rates.items())
        if any(values)
    }
