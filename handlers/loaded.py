"""A model ready to run: its stages, how its inputs are read, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.handlers.contract import Context, Handler
from penstock.handlers.decorator import Declared
from penstock.handlers.media import Codec
from penstock.model_spec import VersionInfo

Stage = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """An initialised handler. A stage that the handler leaves to the base class is None and costs nothing."""

    context: Context
    handler: Handler
    declared: Declared
    codec: Codec
    accepts: tuple[str, ...]
    inference: Stage
    preprocess: Stage | None = None
    postprocess: Stage | None = None
    explain: Stage | None = None
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    provider: str = ""

    def padding_ratio(self) -> float | None:
        """Which share of the batch just run was padding, 0 to 1, from the handler's property or method of that name.

        None where it has none or does not know. Asked after each `inference`.
        """
        told: Any = getattr(self.handler, "padding_ratio", None)
        told = told() if callable(told) else told
        return None if told is None else min(1.0, max(0.0, float(told)))

    def info(self) -> VersionInfo:
        """What the workers announce of this version."""
        return VersionInfo(self.input_schema, self.output_schema, self.accepts, self.declared.description)
