"""Where the payloads lie that are too large for a record, as the settings say it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class BlobPlace:
    """Objects below `url` where one is named, else files in `folder`.

    `copies_dir`: where this machine puts copies of objects for as long as a model process reads them.
    """

    folder: Path
    url: str = ""
    copies_dir: Path = Path("blob-copies")
