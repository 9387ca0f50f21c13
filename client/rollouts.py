"""The calls that change or record a model while it runs, for both clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from penstock.client.protocol import JSON, HttpCall


def model_call(model: str) -> HttpCall:
    return HttpCall("GET", _path(model))


def load_call(model: str, version: str, source: str, *, settings: Mapping[str, Any]) -> HttpCall:
    """`source` is a path below the workers' `model_dir`; `settings` are keys of a version's table."""
    return _change("POST", f"{_path(model)}/versions", {**settings, "version": version, "source": source})


def switch_call(model: str, version: str) -> HttpCall:
    return _change("PUT", f"{_path(model)}/default", {"version": version})


def unload_call(model: str, version: str) -> HttpCall:
    return HttpCall("DELETE", f"{_path(model)}/versions/{quote(version, safe='')}", repeatable=False)


def reset_call(model: str) -> HttpCall:
    return HttpCall("DELETE", f"{_path(model)}/rollout")


def ask_profile_call(model: str, version: str | None) -> HttpCall:
    return HttpCall("POST", f"{_path(model)}/profile", params={"version": version} if version else {})


def profile_call(model: str) -> HttpCall:
    return HttpCall("GET", f"{_path(model)}/profile")


def _change(method: str, path: str, body: Mapping[str, Any]) -> HttpCall:
    # Loading twice is a conflict: after a lost answer the caller has to look, not the client.
    return HttpCall(method, path, headers={"content-type": JSON}, content=json.dumps(body).encode(), repeatable=method == "PUT")


def _path(model: str) -> str:
    return f"/v1/models/{quote(model, safe='')}"
