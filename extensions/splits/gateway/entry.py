"""A model's split as the submits of this gateway use it: chooses the version of each request that names none."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import structlog

from penstock.extensions.splits.split import Split, chosen, split_of
from penstock.extensions.splits.store import WORD
from penstock.gateway.models.parts import Headers
from penstock.gateway.models.registry import ModelEntry, VersionEntry

log = structlog.get_logger(__name__)
_KEY = b"idempotency-key"


@dataclass(frozen=True, slots=True)
class SplitEntry:
    """`versions` are those that get requests now; the ends of their jobs are counted under the split's figures. `shadow` is the
    version for copies; None without one, and while no worker serves it.
    """

    model: str
    split: Split
    shares: dict[str, float]
    versions: dict[str, VersionEntry]
    shadow: VersionEntry | None
    header: bytes

    def choose(self, headers: Headers) -> VersionEntry:
        """By the sticky header, else by the idempotency key, else by chance. A repeat is then usually checked by the version of
        its first job, which the store returns.
        """
        said = {name: value for name, value in headers if name in (self.header, _KEY)}
        value = said.get(self.header) or said.get(_KEY)
        if value:
            return self.versions[chosen(self.shares, self.model, value.decode("latin-1"))]
        [name] = random.choices(list(self.shares), list(self.shares.values()))
        return self.versions[name]

    def is_copied(self) -> bool:
        """Whether the shadow gets a copy of the next request."""
        shadow = self.split.shadow
        return shadow is not None and self.shadow is not None and random.random() * 100.0 < shadow.share


def split_in(entry: ModelEntry) -> SplitEntry | None:
    """None for a model without a split that can be read."""
    return entry.chooser if isinstance(entry.chooser, SplitEntry) else None


def split_entry(kept: Mapping[str, Any], model: str, versions: Mapping[str, VersionEntry]) -> SplitEntry | None:
    """None if none of its versions is served any more, or if this release cannot read the split: then the default serves."""
    try:
        split = split_of(kept)
    except msgspec.ValidationError as error:
        log.warning("split_unreadable", model=model, reason=str(error)[:200])
        return None
    assert split is not None
    shares = {name: share for name, share in split.shares().items() if share > 0.0 and name in versions}
    if not shares:
        return None
    word = {WORD: split.figures}
    marked = {name: replace(versions[name], chosen=word) for name in shares}
    copies = versions.get(split.shadow.version) if split.shadow else None
    shadow = copies and replace(copies, chosen=word)
    return SplitEntry(model, split, shares, marked, shadow, split.sticky.encode())
