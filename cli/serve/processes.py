"""The processes that commands start beside themselves: which module each is, and what it may see of the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from penstock.cli.serve import plan
from penstock.cli.serve.supervisor import ManagedProcess
from penstock.process_lifetime import PARENT_VARIABLE
from penstock.settings.tables import Settings

_MODULES = {"gateway": "penstock.gateway", "worker": "penstock.workers", "runner": "penstock.runs"}
# -P for those that run no code of the user's: a redis.py beside the model must not shadow the real one.
_FLAGS = {"gateway": ["-P"], "worker": [], "runner": ["-P"]}


def child(name: str, env: Mapping[str, str], store_url: str) -> ManagedProcess:
    """One of `gateway`, `worker`, `runner`, to be supervised. It ends with us even when we are killed."""
    whole = {**plan.with_store(env, store_url), PARENT_VARIABLE: str(os.getpid())}
    return ManagedProcess(name, [sys.executable, *_FLAGS[name], "-m", _MODULES[name]], _own(whole, name))


def _own(env: Mapping[str, str], name: str) -> dict[str, str]:
    """What this process needs of the environment: keys are the gateway's business, and a caller's key nobody's here."""
    strangers = ("PENSTOCK_API_KEY",) if name == "gateway" else ("PENSTOCK_API_KEY", "PENSTOCK_KEYS", "PENSTOCK_KEYS_FILE")
    return {variable: value for variable, value in env.items() if variable not in strangers}


def store_server(settings: Settings) -> Any:
    """The embedded server, not started yet; a stand-in without one when a Redis is configured."""
    if settings.store.url:
        return nullcontext()
    # Here, because systems without an embedded server can still start everything on a Redis of their own.
    from penstock.broker.server.embedded import EmbeddedServer

    return EmbeddedServer(settings.store.state_dir, fsync=settings.store.fsync, users=True)
