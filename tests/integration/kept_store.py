"""A store as an earlier tree filled it, kept as a file. `python -m tests.integration.kept_store` writes it with its own tree.

The file was written by the last tree before extensions had folders of their own. Write a new one only from a tree whose stores
are still to be served: what it holds is what users of that tree have in their stores.
"""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from redis import Redis

from penstock.embedded.server import EmbeddedServer
from tests.acceptance.gateway_process import GatewayClient, gateway_process
from tests.eventually import eventually
from tests.integration.worker_process import FAULTY, WorkerProcess

KEPT = Path(__file__).with_name("kept_store.json")
# What stands in the file for the folder in which the store's files lie.
FOLDER = "@folder@"
CHECKOUT = "@checkout@"
LONG_S = 3e8
ROOT = Path(__file__).parents[2]
_LIMITS = {"deadline_s": LONG_S, "bulk_deadline_s": LONG_S, "result_ttl_s": LONG_S}
MODELS: dict[str, Any] = {
    "square": {"source": str(ROOT / "examples" / "square.py"), **_LIMITS},
    "faulty": {"source": f"{FAULTY}:Faulty", **_LIMITS},
}
HOOK = "http://127.0.0.1:9/never/"
GATEWAY = {
    "PENSTOCK_STORE__INLINE_INPUT_BYTES": "200",
    "PENSTOCK_WEBHOOKS__SIGNING_KEYS": "whsec_" + base64.b64encode(bytes(32)).decode(),
    "PENSTOCK_WEBHOOKS__URLS": HOOK,
}
# An input that is larger than what a record holds, so it is a file.
LARGE = b'{"x": 5' + b" " * 300 + b"}"


def write() -> None:
    with tempfile.TemporaryDirectory() as name, EmbeddedServer(Path(name) / "store", fsync="everysec") as server:
        folder = Path(name) / "state"
        (folder / "open").mkdir(parents=True)
        jobs = _fill(server.url, folder)
        opened: Any = Redis.from_url(server.url)  # its types allow for answers in text, which this client never gives
        with closing(opened) as redis:
            # What says that a slot lives expires within seconds.
            keys = [_entry(redis, key) for key in sorted(redis.keys("*")) if not key.startswith(b"ps:slot:")]
        files = [path for path in sorted((folder / "blobs").rglob("*")) if path.is_file()]
        kept = {
            "jobs": jobs,
            "keys": json.loads(json.dumps(keys).replace(str(folder), FOLDER).replace(str(ROOT), CHECKOUT)),
            "files": {str(path.relative_to(folder)): base64.b64encode(path.read_bytes()).decode() for path in files},
        }
    KEPT.write_text(json.dumps(kept, indent=0) + "\n")


def restore(redis_url: str, folder: Path) -> dict[str, str]:
    """Put the kept store into an empty server and its files below `folder`; return the ids of its jobs and run by story."""
    kept = json.loads(KEPT.read_text().replace(FOLDER, str(folder)).replace(CHECKOUT, str(ROOT)))
    for name, data in kept["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))
    (folder / "open").mkdir(parents=True, exist_ok=True)
    _rows(folder)
    opened: Any = Redis.from_url(redis_url)
    with closing(opened) as redis:
        for key, kind, value in kept["keys"]:
            _put(redis, _raw(key), kind, value)
    return dict(kept["jobs"])


def _fill(url: str, folder: Path) -> dict[str, str]:
    """One job of each story. The run and the jobs `waiting...` and `delayed` have nobody who works on them."""
    rows = _rows(folder)
    with gateway_process(url, folder, models=MODELS, env={**GATEWAY, "PENSTOCK_RUNS__ROOTS": str(folder / "open")}) as client:
        with WorkerProcess(url, folder / "worker", MODELS, {"PENSTOCK_STORE__STATE_DIR": str(folder)}) as worker:
            worker.await_ready()
            eventually(lambda: client.get("/readyz").status_code == 200)
            found = {
                "succeeded": submit(client, {"x": 3}, "tags=kept"),
                "repeated": submit(client, {"x": 4}, key="kept-key"),
                "failed": submit(client, {"do": "raise"}, model="faulty"),
                "hooked": submit(client, {"x": 6}, f"webhook={HOOK}"),
            }
            for job in found.values():
                eventually(partial(_is_ended, client, job))
        found |= {
            "waiting": submit(client, {"x": 7}, "tags=kept"),
            "waiting_large": submit(client, LARGE),
            "waiting_bulk": submit(client, {"x": 8}, "priority=bulk"),
            "delayed": submit(client, {"x": 9}, "delay_s=60"),
        }
        run = client.post("/v1/runs", json={"model": "square", "input": str(rows)})
        assert run.status_code == 202, run.text
        return found | {"run": run.json()["id"]}


def _is_ended(client: GatewayClient, job: str) -> bool:
    return client.get(f"/v1/jobs/{job}").json()["status"] in ("succeeded", "failed")


def _rows(folder: Path) -> Path:
    rows = folder / "open" / "rows.jsonl"
    rows.write_text("".join(json.dumps({"x": x}) + "\n" for x in range(5)))
    return rows


def submit(client: GatewayClient, body: object, query: str = "", *, key: str = "", model: str = "square") -> str:
    headers = {"content-type": "application/json", **({"idempotency-key": key} if key else {})}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(f"/v1/models/{model}/jobs?{query}", content=content, headers=headers)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def _entry(redis: Any, key: bytes) -> tuple[str, str, Any]:
    kind = redis.type(key).decode()
    read: dict[str, Callable[[], Any]] = {
        "string": lambda: _text(redis.get(key)),
        "hash": lambda: {_text(name): _text(value) for name, value in redis.hgetall(key).items()},
        "list": lambda: [_text(one) for one in redis.lrange(key, 0, -1)],
        "set": lambda: sorted(_text(one) for one in redis.smembers(key)),
        "zset": lambda: {_text(one): score for one, score in redis.zrange(key, 0, -1, withscores=True)},
        "stream": lambda: [[_text(at), {_text(n): _text(v) for n, v in said.items()}] for at, said in redis.xrange(key)],
    }
    return _text(key), kind, read[kind]()


def _put(redis: Any, key: bytes, kind: str, value: Any) -> None:
    if kind == "string":
        redis.set(key, _raw(value))
    elif kind == "hash":
        redis.hset(key, mapping={_raw(name): _raw(one) for name, one in value.items()})
    elif kind == "list":
        redis.rpush(key, *(_raw(one) for one in value))
    elif kind == "set":
        redis.sadd(key, *(_raw(one) for one in value))
    elif kind == "zset":
        redis.zadd(key, {_raw(one): score for one, score in value.items()})
    else:
        for at, said in value:
            redis.xadd(key, {_raw(name): _raw(one) for name, one in said.items()}, id=at)


def _text(value: Any) -> str:
    """Bytes as text of the same length, which JSON can hold."""
    return bytes(value).decode("latin-1")


def _raw(text: str) -> bytes:
    return text.encode("latin-1")


if __name__ == "__main__":
    write()
