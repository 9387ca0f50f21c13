"""`penstock status`: the health of a gateway and everything behind it, in ten lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

import typer

from penstock.cli.display import age, print_fields, print_json
from penstock.cli.options import JsonOption, KeyOption, UrlOption
from penstock.client import calls, protocol
from penstock.client.retries import RetryPolicy
from penstock.client.sync import Client
from penstock.errors import NotFound, WrongRole
from penstock.words import count, duration, percent, plural

app = typer.Typer(add_completion=False)
T = TypeVar("T")
Row = Mapping[str, Any]

# The most failed jobs and runs that are counted; beyond that, "1,000 or more".
_MOST_FAILED, _MOST_RUNS = 1_000, 100
# The most models, faults and runs that a line names.
_NAMED = 4
_MANAGE = "takes a key with the role manage"


@dataclass(frozen=True, slots=True)
class GatewayStatus:
    """`why`: the reason why the gateway is not ready. `workers`: None if the key may not see them."""

    url: str
    why: str
    queues: Sequence[Row]
    workers: Sequence[Row] | None
    failed: Sequence[Row]
    runs: Sequence[Row]


@app.command()
def status(as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Show in ten lines whether all is well: queues, slots, workers, failed jobs, runs, the store.

    It takes a key with the role read; workers are shown to one with the role manage. `--json` prints one object.
    """
    # Does not wait for a missing gateway: that is the answer.
    with Client(url, api_key, retry=RetryPolicy(max_attempts=1)) as client:
        seen = look(client)
    if as_json:
        return print_json(asdict(seen) | {"ready": not seen.why})
    return print_fields(lines_of(seen))


def look(client: Client) -> GatewayStatus:
    return GatewayStatus(
        client.base_url,
        protocol.unready_why(client.send(calls.ready_call())),
        protocol.rows_of(client.send(calls.queues_call())),
        _allowed(client.workers),
        [*islice(client.failed.jobs(), _MOST_FAILED)],
        [handle.view.body for handle in islice(client.runs(), _MOST_RUNS) if not handle.view.final],
    )


def _allowed(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except (WrongRole, NotFound):
        return None


def lines_of(seen: GatewayStatus, *, now: datetime | None = None) -> dict[str, str]:
    """One line per name; none is empty."""
    queues = seen.queues
    return {
        "gateway": f"{seen.url} " + (f"is not ready: {seen.why}" if seen.why else "is ready"),
        "models": _models(queues),
        "slots": _slots(queues, seen.workers or ()),
        "workers": _workers(seen.workers),
        "waiting": _waiting(queues),
        "running": _by_model(queues, "in_flight"),
        "delayed": _by_model(queues, "delayed"),
        "failed": _failed(seen.failed, now),
        "runs": _runs(seen.runs),
        "store": _store(seen.why),
    }


def _models(queues: Sequence[Row]) -> str:
    words = {"paused": "paused", "unloaded": "loaded with its next job"}
    names = [queue["model"] + "".join(f" ({word})" for name, word in words.items() if queue.get(name)) for queue in queues]
    return f"{len(names)}: {_some(names)}" if names else "none; load one, or start a worker that serves one: penstock up MODEL"


def _slots(queues: Sequence[Row], workers: Sequence[Row]) -> str:
    # A slot of a paused model takes no jobs, and does not count as ready.
    serving = [queue for queue in queues if not queue["paused"]]
    ready, wanted = (sum(queue[name] for queue in serving) for name in ("ready_slots", "wanted_slots"))
    lacking = [
        f"{queue['model']} {queue['ready_slots']} of {queue['wanted_slots']}"
        for queue in serving
        if queue["ready_slots"] < queue["wanted_slots"]
    ]
    faults = [slot["error"] for worker in workers for slot in worker.get("slots") or () if slot.get("error")]
    return f"{ready} of {wanted} ready" + (f": {_some([*lacking, *dict.fromkeys(faults)])}" if lacking else "")


def _workers(workers: Sequence[Row] | None) -> str:
    if workers is None:
        return _MANAGE
    hosts, drained = {worker.get("host") for worker in workers}, sum(bool(worker.get("drained")) for worker in workers)
    if not workers:
        return "none is alive; start one with `penstock worker`, or all with `penstock up`"
    return f"{len(workers)} on {plural(len(hosts), 'host')}" + (f", {drained} drained" if drained else "")


def _waiting(queues: Sequence[Row]) -> str:
    text = _by_model(queues, "depth")
    if not any(queue["depth"] for queue in queues):
        return text
    oldest = max(queue["oldest_age_s"] for queue in queues)
    known = [queue["backlog_s"] for queue in queues if queue["depth"]]
    left = "" if None in known else f", {duration(max(known))} until empty"
    return f"{text}; the oldest for {duration(oldest)}{left}"


def _by_model(queues: Sequence[Row], name: str) -> str:
    return _counted({queue["model"]: queue[name] for queue in queues}, "job")


def _failed(jobs: Sequence[Row], now: datetime | None) -> str:
    if not jobs:
        return "0 jobs"
    faults = Counter(f"{job['model']} {(job.get('error') or {}).get('code') or job['status']}" for job in jobs)
    text = _counted(faults, "job") if len(jobs) < _MOST_FAILED else f"{count(len(jobs))} jobs or more: {_most(faults)}"
    newest = jobs[0].get("finished_at")
    since = f"; the newest {age(datetime.fromisoformat(newest), now=now)} ago" if newest else ""
    return f"{text}{since} (penstock jobs list --failed)"


def _runs(runs: Sequence[Row]) -> str:
    if not runs:
        return "0 go on"
    shown = [f"{run['id']} {run['model']} {run['status']}{_share(run['progress'])}" for run in runs]
    return f"{len(runs)} {'goes' if len(runs) == 1 else 'go'} on: {_some(shown)}"


def _share(progress: Row) -> str:
    rows = progress["rows"]
    return f" {percent((progress['done'] + progress['failed']) / rows)}" if rows else ""


def _store(why: str) -> str:
    """The gateway's probe writes to the store, so its reasons include a failing store."""
    parts = (part.partition(": ") for part in why.split("; "))
    return next((detail for name, _, detail in parts if name == "store"), "takes writes")


def _counted(counts: Mapping[str, int], noun: str) -> str:
    total = sum(counts.values())
    return plural(total, noun) + (f": {_most(counts)}" if total else "")


def _most(counts: Mapping[str, int]) -> str:
    """Each name with its count, the largest first."""
    return _some(f"{name} {count(number)}" for name, number in Counter(counts).most_common() if number)


def _some(texts: Iterable[str]) -> str:
    listed = list(texts)
    more = len(listed) - _NAMED
    return ", ".join(listed[:_NAMED]) + (f" and {more} more" if more > 0 else "")
