"""Objects of an S3 bucket, or all below a folder of it. Loaded only where a source begins with s3://."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, PreconditionError, UnauthenticatedError
from obstore.store import from_url

from penstock.settings.remote_sources import RemoteSource
from penstock.workers.fetch.origin import FetchFailed, FileBytes, Listing, OriginAway, RemoteFile

# A larger chunk would be lost whole if the connection breaks.
_CHUNK_BYTES = 1 << 16
_FAULT_CHARS = 300
_SILENCE = "9s"
_RETRIES = {
    "max_retries": 2,
    "retry_timeout": timedelta(seconds=2),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=0.4), "base": 2},
}
_HINT = "check the name of the bucket, AWS_ENDPOINT and AWS_REGION, and the credentials in the environment of the worker"


class ObjectOrigin:
    """Credentials and endpoint come from the environment, under the names that every S3 client reads."""

    def __init__(self) -> None:
        # In the environment, as for blobs: options of the client would replace what the environment says of
        # connections (AWS_ALLOW_HTTP, proxies).
        os.environ.setdefault("AWS_READ_TIMEOUT", _SILENCE)

    def look(self, source: RemoteSource) -> Listing:
        """The revision stands for the names and tags of all objects there, so that a change of one is a new revision."""
        with _faults(source):
            entries = [entry for entry in self._entries(source) if entry["path"].startswith(source.file)]
        files = tuple(RemoteFile(one["path"], one["size"], tag=one["e_tag"] or "") for one in entries)
        if not files:
            raise FetchFailed(f"{source} does not exist: the bucket has no such object", hint=_HINT)
        names = "\n".join(sorted(f"{file.path} {file.tag}" for file in files))
        seen = hashlib.sha256(names.encode()).hexdigest()[:16]
        if source.revision and source.revision != seen:
            raise FetchFailed(
                f"{source}: the objects have changed since this version was first loaded, and a version stays what it is",
                hint='give the new objects a version of their own (version = "2"), or put the former ones back',
            )
        return Listing(seen, files)

    def size_of(self, source: RemoteSource, file: RemoteFile) -> int:
        with _faults(source):
            return int(obstore.head(self._store(source), file.path)["size"])

    @contextmanager
    def read(self, source: RemoteSource, file: RemoteFile, start: int) -> Iterator[FileBytes]:
        options: Any = {"if_match": file.tag} if file.tag else {}
        if start:
            options["range"] = {"offset": start}
        with _faults(source):
            answer = obstore.get(self._store(source), file.path, options=options)
            yield FileBytes(answer.range[0], (bytes(chunk) for chunk in answer.stream(_CHUNK_BYTES)))

    def _entries(self, source: RemoteSource) -> list[Any]:
        """All objects below a folder; beside a single object only those of its own folder."""
        if source.is_folder:
            return [entry for page in obstore.list(self._store(source), prefix=source.file.rstrip("/")) for entry in page]
        beside = source.file.rpartition("/")[0] or None
        return list(obstore.list_with_delimiter(self._store(source), prefix=beside)["objects"])

    def _store(self, source: RemoteSource) -> Any:
        return from_url(f"s3://{source.location}", retry_config=_RETRIES)  # type: ignore[call-overload]


@contextmanager
def _faults(source: RemoteSource) -> Iterator[None]:
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise FetchFailed(f"{source} does not exist: there is no such bucket or object", hint=_HINT) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise FetchFailed(f"{source} may not be read with the credentials of this worker", hint=_HINT) from error
    except PreconditionError as error:
        raise OriginAway(f"{source} changed while it was read") from error
    except (BaseError, OSError) as error:
        if "NoSuchBucket" in str(error):
            raise FetchFailed(f"{source} does not exist: there is no such bucket", hint=_HINT) from error
        # Cut at a question mark, because signed addresses hold credentials behind it.
        said = re.sub(r"\?\S*", "", str(error).partition("\n")[0])
        raise OriginAway(f"{source}: {said[:_FAULT_CHARS]}") from error
