"""What a version says of itself when it is described: the handler of an archive is asked, that of another model has said it."""

from __future__ import annotations

from typing import Any

import orjson

from penstock.extensions.torchserve.management.service import Describe
from penstock.gateway.asgi.connection import ClientConnection
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.predict import PredictEndpoint, answer_deadline
from penstock.gateway.jobs.results import ResultReader
from penstock.gateway.jobs.submitting.draft import SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import NO_OPTIONS
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.inputs.request import packed
from penstock.job import Payload

# Of the headers of a request, as handlers of TorchServe look for it.
_DESCRIBE = {"describe": "True"}


class DescribeRunner:
    """`within_s`: how long a description may take."""

    def __init__(self, predict: PredictEndpoint, results: ResultReader, *, within_s: float) -> None:
        self._predict = predict
        self._results = results
        self._within_s = within_s

    def of(self, caller: Caller, connection: ClientConnection) -> Describe:
        """For this caller: raises as a prediction does, and `ClientGone` once it hangs up."""

        async def run(entry: ModelEntry, version: VersionEntry) -> Any:
            return await self._run(entry, version, caller, connection)

        return run

    async def _run(self, entry: ModelEntry, version: VersionEntry, caller: Caller, connection: ClientConnection) -> Any:
        if not version.takes_raw:
            return _known(version)
        payload = packed(Payload("application/octet-stream", b""), headers=_DESCRIBE, query={})
        request = SubmitRequest(entry, version, payload, NO_OPTIONS, caller)
        end = await self._predict.end_of(request, connection, answer_deadline(request, self._within_s))
        output = (await self._results.output(end)).data
        try:
            return orjson.loads(output)
        except orjson.JSONDecodeError:
            return output.decode("utf-8", "replace")


def _known(version: VersionEntry) -> dict[str, Any]:
    info = version.info
    if info is None:
        return {}
    found = {"description": info.description, "inputSchema": info.input_schema, "outputSchema": info.output_schema}
    return {name: value for name, value in found.items() if value}
