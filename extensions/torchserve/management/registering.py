"""What a caller of the management asks for, and what a registration makes of it. Pure.

Parameters come from the query, or by the same names from a JSON object. As in TorchServe an integer that cannot be read counts
as not given. A number that is out of range is refused before anything is touched, which TorchServe does not do.
"""

# D103: docs/design/protocols.md
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.extensions.torchserve.archives.contents import ArchiveContents
from penstock.extensions.torchserve.archives.kinds import archive_stem, is_archive_file
from penstock.extensions.torchserve.archives.model_settings import ARCHIVE_DEFAULTS, model_settings
from penstock.extensions.torchserve.gateway.errors import TorchServeError, bad_request
from penstock.extensions.torchserve.settings.table import TorchServeSettings
from penstock.job import RESERVED_NAME
from penstock.model_spec import MAX_BATCH_SIZE, name_fault

MOST_LISTED = 100
MOST_WORKERS = 1_024
MOST_MS = MOST_S = 86_400_000
_RUNTIMES = ("python", "python2", "python3")
# TorchServe's defaults for an archive that does not set them.
DEFAULT_VERSION = "1.0"
_NAMES = "must have 1 to 64 letters, digits, '_', '.' or '-' and begin with a letter or digit."


@dataclass(frozen=True, slots=True)
class RegisterWish:
    """`table` are the settings of the version that the caller gave. The archive's configuration, then defaults, fill in the
    rest.
    """

    url: str
    model_name: str = ""
    handler: str = ""
    table: dict[str, float] = field(default_factory=dict)
    synchronous: bool = True


@dataclass(frozen=True, slots=True)
class ScaleWish:
    """`policy` are the fields of our batch policy that the caller gave."""

    min_workers: int = 1
    max_workers: int = 1
    synchronous: bool = False
    policy: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    limit: int = MOST_LISTED
    start: int = 0


def register_wish(given: Mapping[str, Any]) -> RegisterWish:
    """Raises `TorchServeError`: 400 without `url` or for a number out of range, 404 for an empty one."""
    if given.get("url") is None:
        raise bad_request("Parameter url is required.")
    url = _text(given, "url")
    if not url:
        raise TorchServeError(404, "ModelNotFoundException", "empty url")
    runtime = _text(given, "runtime") or "python"
    if runtime.lower() not in _RUNTIMES:
        raise bad_request(f"Invalid RuntimeType value: {runtime[:80]}")
    return RegisterWish(
        url=url,
        model_name=_text(given, "model_name"),
        handler=_text(given, "handler"),
        table=_table(given),
        synchronous=_flag(given, "synchronous", default=True),
    )


def scale_wish(given: Mapping[str, Any]) -> ScaleWish:
    """Raises `TorchServeError`, 400."""
    least = _number(given, "min_worker", least=0, most=MOST_WORKERS)
    most = _number(given, "max_worker", least=0, most=MOST_WORKERS)
    min_workers = 1 if least is None else least
    max_workers = min_workers if most is None else most
    if max_workers < min_workers:
        raise bad_request("max_worker cannot be less than min_worker.")
    return ScaleWish(min_workers, max_workers, _flag(given, "synchronous", default=False), _policy(given))


def page_of(given: Mapping[str, Any]) -> Page:
    limit, start = _integer(given.get("limit")), _integer(given.get("next_page_token"))
    return Page(
        MOST_LISTED if limit is None or not 0 <= limit <= MOST_LISTED else limit, 0 if start is None or start < 0 else start
    )


def is_customized(given: Mapping[str, Any]) -> bool:
    return _flag(given, "customized", default=False)


def _table(given: Mapping[str, Any]) -> dict[str, float]:
    """What was given of a version's settings, by our names."""
    table = _policy(given)
    slots = _number(given, "initial_workers", least=0, most=MOST_WORKERS)
    table |= {} if slots is None else {"slots": slots}
    for ours, name in (("max_run_s", "response_timeout"), ("load_timeout_s", "startup_timeout")):
        seconds = _number(given, name, least=1, most=MOST_S)
        table |= {} if seconds is None else {ours: float(seconds)}
    return table


def _policy(given: Mapping[str, Any]) -> dict[str, float]:
    """What was given of a batch policy, by our names and in seconds."""
    size = _number(given, "batch_size", least=1, most=MAX_BATCH_SIZE)
    delay_ms = _number(given, "max_batch_delay", least=0, most=MOST_MS)
    policy: dict[str, float] = {} if size is None else {"max_batch_size": size}
    return policy if delay_ms is None else {**policy, "max_wait_s": delay_ms / 1_000}


def _number(given: Mapping[str, Any], name: str, *, least: int, most: int) -> int | None:
    number = _integer(given.get(name))
    if number is not None and not least <= number <= most:
        raise bad_request(f"{name} is {number}; it can be {least} to {most}.")
    return number


def _integer(value: Any) -> int | None:
    """As TorchServe reads it: JSON may hold a number as text, and anything but a whole number counts as not given."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return int(value) if not isinstance(value, float) or value.is_integer() else None
    except (ValueError, OverflowError):
        return None


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not value.isprintable():
        raise bad_request(f"Parameter {name} must be a text.")
    return value


def _flag(given: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = given.get(name)
    return default if value is None else str(value).lower() == "true"


@dataclass(frozen=True, slots=True)
class Registration:
    """A version to load. `table` has its settings, its source among them."""

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


def registration(
    wish: RegisterWish,
    source: str,
    archive: ArchiveContents | None,
    own: TorchServeSettings,
    *,
    is_remote: bool,
) -> Registration:
    """The request overrides the archive's own configuration, which overrides `own`.

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
    table = {**_defaults(own), **configured, **wish.table, "source": source}
    if "slots_per_device" in configured and (slots := wish.table.get("slots")):
        # The archive names one device, which its workers share.
        table |= {"slots": 1, "slots_per_device": slots}
    if wish.handler:
        table["options"] = {**dict(configured.get("options", {})), "handler": wish.handler}
    if is_remote:
        # Without its query, which may hold a key: all callers who may read see this.
        table["registered_from"] = wish.url.partition("?")[0]
    return Registration(model, version, table)


def _configured(archive: ArchiveContents) -> dict[str, Any]:
    """What the archive's model-config.yaml says. Raises `TorchServeError` if it asks for what penstock does not have."""
    settings = model_settings(archive.config)
    if settings.refused:
        raise TorchServeError(400, "InvalidModelException", f"The archive cannot be used: {'; '.join(settings.refused)}")
    return dict(settings.values)


def conflict(new: Registration) -> TorchServeError:
    message = f"Model version {new.version} is already registered for model {new.model}"
    return TorchServeError(409, "ConflictStatusException", message)


def not_started(model: str, version: str, reasons: Sequence[str]) -> TorchServeError:
    """TorchServe's sentence, and behind it the first reason."""
    sentence = f"Failed to start workers for model {model} version: {version}"
    return TorchServeError(500, "InternalServerException", ". ".join([sentence, *reasons[:1]]))


def _stem(source: str) -> str:
    """The name of an archive's file, or of a file of code, which may name a class behind a colon."""
    return archive_stem(Path(source)) if is_archive_file(source) else Path(source.partition(".py:")[0]).stem


def _defaults(own: TorchServeSettings) -> dict[str, Any]:
    return {
        "slots": own.default_workers,
        "max_batch_size": ARCHIVE_DEFAULTS["max_batch_size"],
        "max_wait_s": ARCHIVE_DEFAULTS["max_wait_s"],
        "max_run_s": own.default_response_timeout_s,
        "load_timeout_s": own.default_startup_timeout_s,
        "max_queue_depth": own.default_queue_depth,
    }
