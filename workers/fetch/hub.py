"""Repositories of a model hub, by the two addresses of its protocol: what a revision holds, and one file of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from penstock.settings.remote_sources import RemoteSource
from penstock.workers.fetch.origin import FetchFailed, FileBytes, Listing, RemoteFile
from penstock.workers.fetch.web import Web

ENDPOINT_VARIABLE, TOKEN_VARIABLE = "HF_ENDPOINT", "HF_TOKEN"
_ENDPOINT = "https://huggingface.co"
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubOrigin:
    """The endpoint and the token come from `environment`, under the names that every hub client reads."""

    def __init__(self, web: Web, environment: Mapping[str, str]) -> None:
        self._web = web
        self._endpoint = (environment.get(ENDPOINT_VARIABLE) or _ENDPOINT).rstrip("/")
        token = environment.get(TOKEN_VARIABLE, "").strip()
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def look(self, source: RemoteSource) -> Listing:
        """A branch or tag becomes the commit that it names now."""
        revision = quote(source.revision or "main", safe="")
        url = f"{self._endpoint}/api/models/{source.location}/revision/{revision}?blobs=true"
        answer = self._web.json(url, self._headers, what=str(source))
        try:
            commit, files = str(answer["sha"]), tuple(_file(one) for one in answer["siblings"])
        except (KeyError, TypeError) as error:
            raise FetchFailed(f"{source}: {self._endpoint} does not answer as a model hub does; check HF_ENDPOINT") from error
        if not _COMMIT.fullmatch(commit):
            raise FetchFailed(f"{source}: {self._endpoint} names no commit for this revision")
        return Listing(commit, files)

    def size_of(self, source: RemoteSource, file: RemoteFile) -> int:
        return self._web.size_of(self._url(source, file), self._headers, what=f"{source} ({file.path})")

    @contextmanager
    def read(self, source: RemoteSource, file: RemoteFile, start: int) -> Iterator[FileBytes]:
        with self._web.read(self._url(source, file), self._headers, start, what=f"{source} ({file.path})") as part:
            yield part

    def _url(self, source: RemoteSource, file: RemoteFile) -> str:
        return f"{self._endpoint}/{source.location}/resolve/{source.revision}/{quote(file.path)}"


def _file(entry: Mapping[str, Any]) -> RemoteFile:
    """Large files have the SHA-256 of their content, small ones the id of their blob in git."""
    path, size = str(entry["rfilename"]), entry.get("size")
    size_bytes = size if isinstance(size, int) else None
    large = entry.get("lfs") or {}
    if large.get("sha256"):
        return RemoteFile(path, large.get("size", size_bytes), "sha256", str(large["sha256"]))
    blob = str(entry.get("blobId") or "")
    return RemoteFile(path, size_bytes, "git" if blob else "", blob)
