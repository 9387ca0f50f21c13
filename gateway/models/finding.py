"""Merges what a gateway and its workers know of a model, and builds the errors for unknown names. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import UnknownModel, UnknownVersion
from penstock.model_spec import ModelInfo

if TYPE_CHECKING:
    from penstock.gateway.models.registry import ModelEntry


def merged(declared: ModelInfo | None, stored: ModelInfo | None) -> ModelInfo:
    """Limits and default version are from this gateway's settings; batch policy, versions and schemas from the workers.

    A handler's own policy is known only once a worker has loaded the handler.
    """
    if stored is None:
        assert declared is not None
        # D142: the store says how many partitions there are, and no key is placed until it has.
        return replace(declared, placing=-1)
    if declared is None:
        return stored
    loaded = {version: info for version, info in stored.versions.items() if info is not None}
    policy = stored.policy if loaded else declared.policy
    return replace(
        declared,
        policy=policy,
        versions={**stored.versions, **declared.versions, **loaded},
        # A gateway without settings for these follows the workers, so that every queue is known to a worker.
        request_headers=declared.request_headers or stored.request_headers,
        query=declared.query or stored.query,
        partitions=stored.partitions,
        held=stored.held,
        placing=stored.placing,
    )


def unknown_model(name: str, known: Iterable[str]) -> UnknownModel:
    names = list(known)
    near = difflib.get_close_matches(name[:64], names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known models: {', '.join(names[:20]) or 'none yet'}."
    return UnknownModel(f"no model is named {name[:64]!r}", model=name[:64], hint=hint)


def unknown_version(entry: ModelEntry, version: str) -> UnknownVersion:
    said, hint = version[:64], f"Its versions: {', '.join(entry.versions)}."
    return UnknownVersion(f"model {entry.name!r} has no version {said!r}", model=entry.name, version=said, hint=hint)
