"""What a registration makes of a request, of the archive's own configuration, and of this gateway's defaults. Pure."""

# D103: docs/design/protocols.md
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.extensions.torchserve.archives.contents import ArchiveContents
from penstock.extensions.torchserve.archives.kinds import archive_stem, is_archive_file
from penstock.extensions.torchserve.archives.model_settings import ARCHIVE_DEFAULTS, model_settings
from penstock.extensions.torchserve.gateway.errors import TorchServeError, bad_request
from penstock.extensions.torchserve.management.parameters import RegisterWish, batch_policy
from penstock.gateway.options import TorchServeOptions
from penstock.job import RESERVED_NAME
from penstock.model_spec import name_fault

# TorchServe's, for an archive that says nothing of them.
DEFAULT_VERSION = "1.0"
_NAMES = "must have 1 to 64 letters, digits, '_', '.' or '-' and begin with a letter or digit."


@dataclass(frozen=True, slots=True)
class Registration:
    """A version that is to be loaded. `table` are settings of a version, its source among them."""

    model: str
    version: str
    table: dict[str, Any]

    @property
    def workers(self) -> int:
        return int(self.table["slots"]) * int(self.table.get("slots_per_device", 1))

    @property
    def startup_s(self) -> float:
        return float(self.table["load_timeout_s"])

    @property
    def done(self) -> str:
        head = f'Model "{self.model}" Version: {self.version} registered with {self.workers} initial workers'
        return head if self.workers else f"{head}. Use scale workers API to add workers for the model."

    @property
    def known_already(self) -> str:
        return f"Model version {self.version} is already registered for model {self.model}"


def registration(
    wish: RegisterWish,
    source: str,
    archive: ArchiveContents | None,
    options: TorchServeOptions,
    *,
    is_remote: bool,
) -> Registration:
    """The request stands over the archive's own configuration, and that over `options`.

    `archive` None: the source is a model's code or file. Raises `TorchServeError`.
    """
    configured = _configured(archive) if archive is not None else {}
    manifest = archive.manifest if archive is not None else None
    model = wish.model_name or (manifest.name if manifest is not None else "") or _stem(source)
    version = manifest.version if manifest is not None else DEFAULT_VERSION
    for what, name in (("model_name", model), ("The version of the archive", version)):
        if fault := name_fault(name):
            raise bad_request(f"{what} {name[:80]!r} {_NAMES}" if name != RESERVED_NAME else fault)
    if wish.handler and archive is None:
        raise bad_request("Parameter handler is for archives; name a class of the code as in url=square.py:Square.")
    table = {**_defaults(options), **configured, **_wished(wish), "source": source}
    if "slots_per_device" in configured and wish.initial_workers:
        # The archive names one device: its workers share that.
        table |= {"slots": 1, "slots_per_device": wish.initial_workers}
    if wish.handler:
        table["options"] = {**dict(configured.get("options", {})), "handler": wish.handler}
    if is_remote:
        # Without its query, which may hold a key: whoever may read sees this.
        table["registered_from"] = wish.url.partition("?")[0]
    return Registration(model, version, table)


def _configured(archive: ArchiveContents) -> dict[str, Any]:
    """What the archive's model-config.yaml says. Raises `TorchServeError` if it asks for what penstock does not have."""
    found = model_settings(archive.config)
    if found.refused:
        raise TorchServeError(400, "InvalidModelException", f"The archive cannot be used: {'; '.join(found.refused)}")
    return dict(found.values)


def conflict(found: Registration) -> TorchServeError:
    return TorchServeError(409, "ConflictStatusException", found.known_already)


def not_started(model: str, version: str, reasons: Sequence[str]) -> TorchServeError:
    """TorchServe's sentence, and behind it the first reason."""
    sentence = f"Failed to start workers for model {model} version: {version}"
    return TorchServeError(500, "InternalServerException", ". ".join([sentence, *reasons[:1]]))


def _stem(source: str) -> str:
    """The name of an archive's file, or of a file of code, which may name a class behind a colon."""
    return archive_stem(Path(source)) if is_archive_file(source) else Path(source.partition(".py:")[0]).stem


def _defaults(options: TorchServeOptions) -> dict[str, Any]:
    return {
        "slots": options.default_workers,
        "max_batch_size": ARCHIVE_DEFAULTS["max_batch_size"],
        "max_wait_s": ARCHIVE_DEFAULTS["max_wait_s"],
        "max_run_s": options.default_response_timeout_s,
        "load_timeout_s": options.default_startup_timeout_s,
        "max_queue_depth": options.default_queue_depth,
    }


def _wished(wish: RegisterWish) -> dict[str, Any]:
    found = {
        "slots": wish.initial_workers,
        "max_run_s": None if wish.response_timeout_s is None else float(wish.response_timeout_s),
        "load_timeout_s": None if wish.startup_timeout_s is None else float(wish.startup_timeout_s),
    }
    return batch_policy(wish.batching) | {name: value for name, value in found.items() if value is not None}
