"""Validators of inputs, compiled from the schemas of models once per version and schema."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import jsonschema_rs
import structlog

from penstock.model_spec import VersionInfo

log = structlog.get_logger(__name__)


class Validators:
    """Validators by model and version. A changed schema is compiled again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[dict[str, Any], jsonschema_rs.Validator | None]] = {}

    def of(self, model: str, version: str, info: VersionInfo | None) -> jsonschema_rs.Validator | None:
        """None without a schema, or if it cannot be compiled."""
        schema = info.input_schema if info else None
        if not schema:
            return None
        known = self._known.get((model, version))
        if known is None or known[0] != schema:
            known = self._known[model, version] = (schema, compile_schema(schema, model=model))
        return known[1]

    def forget_all_but(self, versions: Set[tuple[str, str]]) -> None:
        for version in self._known.keys() - versions:
            del self._known[version]


def _no_fetching(uri: str) -> Any:
    """A model's author writes its schema, which must not make the gateway open files or connections."""
    raise ValueError(f"remote references are not followed: {uri[:80]}")


def compile_schema(schema: dict[str, Any], *, model: str) -> jsonschema_rs.Validator | None:
    """None for a schema that cannot be compiled: then only the worker validates."""
    try:
        return jsonschema_rs.validator_for(schema, retriever=_no_fetching)
    except ValueError as error:
        log.warning("schema_unusable", model=model, reason=str(error)[:200])
        return None
