"""A model ready to run: its stages, the reader of its inputs, and what it says of itself.

Apart from `load.py`, so that the child's runner imports none of the code that finds and imports models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.handlers.contract import Context, Handler
from penstock.handlers.decorator import ModelAttributes
from penstock.handlers.media import Codec
from penstock.model_spec import VersionInfo

Stage = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """An initialised handler. A stage that the handler does not define is None, and the runner skips it."""

    context: Context
    handler: Handler
    attributes: ModelAttributes
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
        """The share of the last `inference` call's batch that was padding, 0 to 1; None if the handler does not say.

        A handler says it by an attribute, a property or a method of this name.
        """
        ratio: Any = getattr(self.handler, "padding_ratio", None)
        ratio = ratio() if callable(ratio) else ratio
        return None if ratio is None else min(1.0, max(0.0, float(ratio)))

    def info(self) -> VersionInfo:
        """What workers announce of this version."""
        return VersionInfo(self.input_schema, self.output_schema, self.accepts, self.attributes.description)
