"""Models, their versions, and uploaded files as Replicate's clients read them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from penstock.extensions.replicate.gateway.predictions import base_url
from penstock.extensions.replicate.gateway.request import split_version
from penstock.extensions.replicate.gateway.views import PREFIX, file_view, model_view, version_view
from penstock.gateway.asgi.multipart import UploadForm
from penstock.gateway.asgi.wire import json_response
from penstock.gateway.auth.roles import CallerParam
from penstock.gateway.files import files_page, visible_file
from penstock.gateway.services import Services

CONTENT = "content"
PURPOSE = "replicate"
_MOST_LISTED = 1_000
_UPLOAD_BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": [CONTENT],
                "properties": {CONTENT: {"type": "string", "format": "binary"}},
            }
        }
    },
}


class ReplicateCatalog:
    """The routes of models and files."""

    def __init__(self, services: Services) -> None:
        self._registry = services.registry
        self._files = services.files
        self._root = services.settings.gateway.root_path
        self._uploads, self._lists = services.file_uploads, services.lists

    def router(self) -> APIRouter:
        router = APIRouter(default_response_class=Response, tags=["replicate"])
        add, model, file = router.add_api_route, f"{PREFIX}/models/{{owner}}/{{name}}", f"{PREFIX}/files"
        add(model, self.model, methods=["GET"], summary="One model")
        add(f"{model}/versions", self.versions, methods=["GET"], summary="The versions of a model")
        add(f"{model}/versions/{{version}}", self.version, methods=["GET"], summary="One version")
        upload = {"requestBody": _UPLOAD_BODY}
        add(file, self.create, methods=["POST"], status_code=201, summary="Store a file", openapi_extra=upload)
        add(file, self.page, methods=["GET"], summary="Files")
        add(f"{file}/{{file_id}}", self.one, methods=["GET"], summary="One file")
        add(f"{file}/{{file_id}}", self.delete, methods=["DELETE"], status_code=204, summary="Delete a file")
        return router

    async def model(self, owner: str, name: str, request: Request) -> Response:
        entry, _ = await self._registry.find(name)
        return json_response(model_view(owner, entry, base_url(request, self._root)))

    async def versions(self, owner: str, name: str) -> Response:
        entry, _ = await self._registry.find(name)
        views = [version_view(entry, version) for version in entry.versions.values()]
        return json_response({"previous": None, "next": None, "results": views})

    async def version(self, owner: str, name: str, version: str) -> Response:
        entry, served = await self._registry.find(name, split_version(version)[1])
        return json_response(version_view(entry, served))

    async def create(self, request: Request, caller: CallerParam) -> Response:
        form = UploadForm(request.headers.get("content-type", ""), CONTENT)
        record = await self._uploads.upload(request, caller, form, purpose=PURPOSE)
        return json_response(file_view(record, base_url(request, self._root)), status=201)

    async def page(self, request: Request, caller: CallerParam) -> Response:
        base = base_url(request, self._root)
        listed = await files_page(self._lists, self._files, caller, purpose=PURPOSE, limit=_MOST_LISTED)
        return json_response({"previous": None, "next": None, "results": [file_view(record, base) for record in listed.files]})

    async def one(self, file_id: str, request: Request, caller: CallerParam) -> Response:
        record = await visible_file(self._files, file_id, caller)
        return json_response(file_view(record, base_url(request, self._root)))

    async def delete(self, file_id: str, caller: CallerParam) -> Response:
        record = await visible_file(self._files, file_id, caller)
        await self._uploads.remove(record)
        return Response(status_code=204)
