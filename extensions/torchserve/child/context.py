"""The context that a handler of an archive gets: one object per process, on which each call finds its own requests (D96)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)
ASKS, SAYS = "asks for the headers of", "sets the response of"
# Requests with one of these headers are not predictions. They are run alone, so asking the first one is asking all.
ALONE = ("explain", "describe")
# Handlers may ask in any case, as HTTP allows; TorchServe compares exactly.
SERVER_NAME = "MMS"
SERVER_VERSION = "0.12.0"
CONTENT_TYPE = "content-type"


class RequestHeaders(dict[str, Any]):
    """The headers of one request and, by the name of each field, its media type. Names are found in any case."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name if super().__contains__(name) else name.lower())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and super().__contains__(name.lower()))

    def get(self, name: str, default: Any = None) -> Any:
        return super().get(name if super().__contains__(name) else name.lower(), default)


class RequestProcessor:
    """What a handler can read of one request, and what it sets of its response."""

    def __init__(self, request_header: Mapping[str, Any]) -> None:
        self._request_header = request_header if isinstance(request_header, RequestHeaders) else RequestHeaders(request_header)
        self._status_code = 200
        self._reason_phrase: str | None = None
        self._response_header: dict[str, str] = {}

    @property
    def is_untouched(self) -> bool:
        """Whether the handler has set nothing of the response."""
        return self._status_code == 200 and not self._response_header and not self._reason_phrase

    def get_request_property(self, key: str) -> Any:
        return self._request_header.get(key)

    def get_request_properties(self) -> Mapping[str, Any]:
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        self._status_code = code
        self._reason_phrase = reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        return self._response_header.get(key)

    def get_response_status_code(self) -> int:
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        return self._reason_phrase


class TorchServeContext:
    """`ts.context.Context`. Handlers hang attributes of their own on it, so it lives as long as its process.

    `request_ids` and `request_processor` are those of the batch that `handle` works on. `touched`: the requests whose headers
    it read or whose response it set.
    """

    def __init__(
        self,
        model_name: str,
        model_dir: str | Path,
        manifest: dict[str, Any],
        batch_size: int,
        gpu: int | None,
        mms_version: str = SERVER_VERSION,
        limit_max_image_pixels: bool = True,
        metrics: Any = None,
        model_yaml_config: dict[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config = model_yaml_config or {}
        self.metrics = metrics
        self.request_ids: dict[int, str] = {}
        self.request_processor: list[RequestProcessor] = [RequestProcessor({})]
        self.touched: dict[str, set[int]] = {ASKS: set(), SAYS: set()}
        self.stopping_criteria: Any = None
        # There is no connection to a frontend here; `send_intermediate_predict_response` finds its way by `sender`.
        self.cl_socket: Any = None
        self.sender: Any = None
        self.header_key_sequence_id = "ts_request_sequence_id"
        self.header_key_sequence_start = "ts_request_sequence_start"
        self.header_key_sequence_end = "ts_request_sequence_end"
        self._system_properties = {
            "model_dir": str(model_dir),
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": SERVER_NAME,
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }

    @property
    def system_properties(self) -> dict[str, Any]:
        return self._system_properties

    def begin(self, ids: Sequence[str], headers: Sequence[RequestHeaders]) -> None:
        """The next call of `handle` works on these requests."""
        self.request_ids = dict(enumerate(ids))
        if self.metrics is not None:
            self.metrics.set_request_ids(self.request_ids)
        self.request_processor = [RequestProcessor(own) for own in headers]
        self.touched = {ASKS: set(), SAYS: set()}

    # The requests.

    def get_request_id(self, idx: int = 0) -> str | None:
        return self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        if key not in ALONE:
            self.touched[ASKS].add(idx)
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> Mapping[str, Any]:
        self.touched[ASKS].add(idx)
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> Any:
        return self.get_request_header(idx, self.header_key_sequence_id)

    # The responses.

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, CONTENT_TYPE, value)

    def get_response_content_type(self, idx: int) -> str | None:
        return self.get_response_headers(idx).get(CONTENT_TYPE)

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self.touched[SAYS].add(idx)
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        return self.request_processor[idx].get_response_headers()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        if not 0 <= idx < len(self.request_processor):
            log.warning("set_response_status: the batch has no request %s", idx)
            return
        self.touched[SAYS].add(idx)
        self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        for own in self.request_processor:
            own.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        own = self.request_processor[idx]
        return own.get_response_status_code(), own.get_response_status_phrase()
