"""What workers announce of themselves and their models, so that gateways need not load any model code. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from penstock.model_spec import WorkerInfo

MODELS_KEY = "ps:models"
WORKERS_KEY = "ps:workers"
STORE_KEY = "ps:store"


class _Entry(msgspec.Struct, array_like=True):
    """`expires_at` is Unix seconds by the worker's clock: an entry that was not renewed is ignored, and later overwritten."""

    expires_at: float
    info: WorkerInfo


def worker_entry(info: WorkerInfo, now: float, ttl_s: float) -> bytes:
    return msgspec.json.encode(_Entry(now + ttl_s, replace(info, seen_at=now)))


def fresh_workers(entries: Mapping[bytes, bytes], now: float) -> list[WorkerInfo]:
    decoded = (msgspec.json.decode(entry, type=_Entry) for entry in entries.values())
    return [entry.info for entry in decoded if entry.expires_at > now]
