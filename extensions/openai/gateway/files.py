"""/v1/files as OpenAI's clients call it: upload in a stream, list, read, download, delete."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from penstock.broker.blobs.uploads import is_file_id
from penstock.errors import BadParameter
from penstock.extensions.openai.gateway.views import page_of
from penstock.gateway.asgi.multipart import UploadForm
from penstock.gateway.asgi.wire import UNTRUSTED, json_response
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.files import WholeFile, file_view, files_page, visible_file
from penstock.gateway.runs.uploads import ANCHOR, LONGEST_S, SECONDS, SHORTEST_S
from penstock.gateway.services import Services

_HEADERS = {**UNTRUSTED, "cache-control": "no-store"}
_UPLOAD_BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"type": "string"},
                    ANCHOR: {"const": "created_at"},
                    SECONDS: {"type": "integer", "minimum": SHORTEST_S, "maximum": LONGEST_S},
                },
            }
        }
    },
}


class OpenAIFiles:
    """The routes of /v1/files."""

    def __init__(self, services: Services) -> None:
        self._files = services.files
        self._uploads, self._lists = services.file_uploads, services.lists

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["files"])
        add = router.add_api_route
        add("/v1/files", self.create, methods=["POST"], summary="Store a file", openapi_extra={"requestBody": _UPLOAD_BODY})
        add("/v1/files", self.page, methods=["GET"], summary="Files")
        add("/v1/files/{file_id}", self.one, methods=["GET"], summary="One file")
        add("/v1/files/{file_id}", self.delete, methods=["DELETE"], summary="Delete a file")
        add("/v1/files/{file_id}/content", self.content, methods=["GET"], summary="A file's bytes")
        return router

    async def create(self, request: Request, caller: CallerParam) -> Response:
        return json_response(file_view(await self._uploads.upload(request, caller, UploadForm(_type_of(request)))))

    async def page(
        self,
        caller: CallerParam,
        after: Annotated[str | None, Query(description="The last id of the previous page.")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        purpose: str | None = None,
    ) -> Response:
        if after and not is_file_id(after):
            raise BadParameter(f"after names {after[:80]!r}, which is no file's id", param="after")
        listed = await files_page(
            self._lists, self._files, caller, purpose=purpose, after=after or "", limit=limit, newest=order == "desc"
        )
        return json_response(page_of([file_view(record) for record in listed.files], has_more=bool(listed.next_after)))

    async def one(self, file_id: str, caller: CallerParam) -> Response:
        return json_response(file_view(await visible_file(self._files, file_id, caller)))

    async def content(self, file_id: str, caller: CallerParam) -> Response:
        record = await visible_file(self._files, file_id, caller)
        return WholeFile.of(self._files.content(record), record.filename, headers=_HEADERS)

    async def delete(self, file_id: str, caller: CallerParam) -> Response:
        record = await visible_file(self._files, file_id, caller)
        await self._uploads.remove(record)
        return json_response({"id": record.id, "object": "file", "deleted": True})


def _type_of(request: Request) -> str:
    return request.headers.get("content-type", "")
