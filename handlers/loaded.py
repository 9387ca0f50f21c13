"""A model ready to run: its stages, the reader of its inputs, and what it says of itself.

Apart from `load.py`, so that the child's runner imports none of the code that finds and imports models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from penstock.handlers.contract import Context, Handler, Request
from penstock.handlers.decorator import ModelAttributes
from penstock.handlers.media import Codec
from penstock.model_spec import VersionInfo

Stage = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """An initialised handler. A stage that the handler does not define is None, and the runner skips it.

    `inference_calls` runs several calls side by side, where a built-in task can do so. `asks`: the inputs come as `Request`s.
    """

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
    output_media: str = ""
    # The media types of outputs; empty: any.
    answers: tuple[str, ...] = ()
    provider: str = ""
    cost: Callable[[Any], float] | None = None
    inference_calls: Callable[[list[list[Any]]], Iterable[list[Any]]] | None = None
    asks: bool = False
    # Whether its code can look at `context.requests`.
    may_look: bool = False
    # The settings name headers or query parameters for it.
    told: bool = False
    streams: bool = False
    # How many items run side by side, as coroutines; 0: the model takes a list at a time.
    at_once: int = 0
    # Events that the worker logs once the model is ready, each with its reason.
    warnings: tuple[tuple[str, str], ...] = ()
    input_urls: tuple[str, ...] = ()
    input_urls_s: float = 10.0
    input_urls_ca: str = ""

    @property
    def call_bounds(self) -> tuple[int, float]:
        """The most items and the most cost of one call."""
        return self.handler.call_bounds

    @property
    def calls_at_once(self) -> int:
        """How many calls `inference_calls` runs side by side."""
        return int(getattr(self.handler, "calls_at_once", 1))

    def as_given(self, value: Any) -> Any:
        """The value as the first stage gets it, where it belongs to no job."""
        return Request(value) if self.asks and not isinstance(value, Request) else value

    def info(self) -> VersionInfo:
        """What workers announce of this version."""
        return VersionInfo(
            self.input_schema,
            self.output_schema,
            self.accepts,
            self.attributes.description,
            streams=self.streams,
            answers=self.answers,
        )
