"""Opens the blob store at the location that the settings name."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.broker.blobs.copies import Copies
from penstock.broker.blobs.files import BlobStore, LocalBlobs
from penstock.distribution import install_hint
from penstock.errors import ConfigError
from penstock.job import BlobLocation

_FOLDER = "file"


def open_blobs(location: BlobLocation) -> BlobStore:
    """Raises `ConfigError` where the library for `location.url` is missing or does not know it."""
    if not location.url:
        return LocalBlobs(location.folder)
    parts = urlsplit(location.url)
    if parts.scheme == _FOLDER:
        # Not obstore's local store, because that one does not sync what it writes.
        return LocalBlobs(Path(unquote(parts.path)))
    try:
        from penstock.broker.blobs.objects import open_objects
    except ImportError as missing:
        raise ConfigError(
            f"store.blob_url names an object store, and obstore is not there: {missing}", hint=install_hint("objectstore")
        ) from missing
    return open_objects(location.url, Copies(location.copies_dir))
