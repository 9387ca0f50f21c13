"""One run, an offline job over files: its states, its specification, its progress, and the tags of runs and jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import replace

from penstock.access import ANY_HEADER, CREDENTIAL_HEADERS, HANDED_ON_CREDENTIALS
from penstock.errors import BadRequest, Conflict, InvalidInput
from penstock.model_spec import VersionInfo

# The kind of runs that the engine itself brings.
FILES = "files"
_MANY_FAILED = 100
_MAX_SAID = 1_024
MAX_TAGS = 8
_TAG = re.compile(r"[A-Za-z0-9._:=-]{1,64}")
_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".txt": "text",
}
# By the formats that are tables of texts.
DELIMITERS = {"csv": ",", "tsv": "\t"}


def format_of(name: str) -> str:
    """The format of rows that a file's name implies; empty if it implies none."""
    return _FORMATS.get(PurePosixPath(name.lower()).suffix, "")


# A key of a run's metadata: a command drives the run, and no runner may take it.
BY_COMMAND = "penstock:command"
# A key of a run's metadata: the caller who resumed the run accepts that its input or its model's version has changed.
ACCEPT_CHANGES = "penstock:accept-changes"
# A key of a run's metadata: the run whose failed rows this one runs again.
RETRY_OF = "penstock:retry-of"
MOST_PARTS = 256


def lasting_json(record: Struct, first: str) -> bytes:
    """The record as JSON for a digest that outlives trees. `first`: the names of the members that it always has, with spaces
    between them; it has a member that came later only if that is set.
    """
    always, members = first.split(), []
    for field in msgspec.structs.fields(record):
        value = getattr(record, field.name)
        if field.name in always or value != (field.default if field.default_factory is NODEFAULT else field.default_factory()):
            members.append(b'"%s":%s' % (field.name.encode(), msgspec.json.encode(value, order="deterministic")))
    return b"{%s}" % b",".join(members)


class RunState(StrEnum):
    """`interrupted` is not stored: a running run whose driver has gone is shown as interrupted, and can be resumed."""

    QUEUED = "queued"
    VALIDATING = "validating"
    RUNNING = "running"
    PUBLISHING = "publishing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        return self in (RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED, RunState.EXPIRED)


class RunSpec(Struct, frozen=True, kw_only=True):
    """The specification of a run. `input` and `output` are paths, globs or fsspec URLs. `columns` maps the model's input
    fields to columns of the input (empty: the whole row; one entry with an empty field name: that column's value alone).
    `carry`: input columns that the output repeats. `errors`: empty for a file beside the output. `max_failed`: more failed
    rows than this end the run (see `FailureLimit.parse`). `window_rows`: the limit of rows submitted and not yet written.
    `kind`: "files", or that of an extension (`runs/kinds.py`). `tags`: words by which the run is found. `headers` (names in
    lower case) and `query`: what the model's handler gets of the request, the same for all rows. `parts`: into how many
    parts the input is to be split, each driven by itself.
    """

    model: str
    input: str
    output: str
    version: str = ""
    kind: str = FILES
    input_format: str = ""
    output_format: str = ""
    columns: dict[str, str] = {}
    carry: tuple[str, ...] = ()
    errors: str = ""
    max_failed: int | str | None = None
    shard_rows: int = 0
    window_rows: int = 10_000
    deadline_s: float = 0.0
    overwrite: bool = False
    endpoint: str = ""
    metadata: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    parts: int = 1


class RunPart(Struct, frozen=True, kw_only=True):
    """A stretch of a run's input: its files from number `first` to before number `stop`, of the files in their order.

    It begins at `begin`, a position in its first file, and ends at `end`: a byte of its last file, or a row group of it; None:
    at the file's start, at its end. `rows` is None if it is not known. `listing` is a digest of the names of all files of the
    input, `identity` one of what the files of this part are; `host`: where the input was split.
    """

    number: int
    first: int
    stop: int
    begin: dict[str, int] | None = None
    end: int | None = None
    rows: int | None = None
    listing: str = ""
    identity: str = ""
    host: str = ""


def part_id(run_id: str, number: int) -> str:
    """The id under which the store knows a part of a run; no run has such an id."""
    return f"{run_id}.{number:04d}"


@dataclass(frozen=True, slots=True)
class FailureLimit:
    """How many rows of a run may fail: `rows`, or if that is None `share` of all rows in runs of more than `beyond` rows."""

    rows: int | None = None
    share: float = 0.10
    beyond: int = 100

    @staticmethod
    def parse(value: int | str | None) -> FailureLimit:
        """A number of rows, a percentage such as "5%", or None for the default. "100%" is no limit. Raises `InvalidInput`."""
        if value is None:
            return FailureLimit()
        text = str(value).strip()
        number = text.removesuffix("%").strip()
        if not number.isascii() or not number.isdigit() or (text.endswith("%") and int(number) > 100):
            raise InvalidInput(
                f"{text!r} is no limit of failed rows", hint='give a number of rows, or a share of them from "0%" to "100%"'
            )
        return FailureLimit(share=int(number) / 100, beyond=0) if text.endswith("%") else FailureLimit(int(number))

    def is_passed(self, counts: RunCounts, *, ended: bool = False) -> bool:
        """Whether too many rows have failed. While the number of all rows is unknown, a share is judged by the rows until now,
        and only after more than 100 have failed: a few bad rows at the start say little.
        """
        if self.rows is not None:
            return counts.failed > self.rows
        if counts.total is None and not ended and counts.failed <= _MANY_FAILED:
            return False
        rows = counts.done + counts.failed if ended or counts.total is None else counts.total
        return rows > self.beyond and counts.failed > self.share * rows

    def __str__(self) -> str:
        return f"{self.rows:,} rows" if self.rows is not None else f"{self.share:.0%} of the rows"


def check_said(given: Mapping[str, str], known: Sequence[str], member: str) -> dict[str, str]:
    """Headers or query parameters for all rows, by the names that the model's settings have. Raises `InvalidInput`.

    `member`: "headers" or "query".
    """
    one = "header" if member == "headers" else "query parameter"
    named = {(name.lower() if member == "headers" else name): value for name, value in given.items()}
    faults = [(name, f"the model's settings name no such {one}") for name in named if not _is_known(name, known)]
    faults += [(name, f"it has more than {_MAX_SAID} characters") for name, value in named.items() if len(value) > _MAX_SAID]
    if faults:
        raise InvalidInput(
            f"the run cannot have these {one}s: {'; '.join(f'{name[:80]!r}, {detail}' for name, detail in faults)}",
            errors=[{"pointer": f"/{member}/{name[:80]}", "detail": detail} for name, detail in faults],
            hint=f"The model takes {', '.join(known) or 'none'}: request_headers and query of its settings name them.",
        )
    return named


def _is_known(name: str, known: Sequence[str]) -> bool:
    return name in known or (ANY_HEADER in known and name not in CREDENTIAL_HEADERS | HANDED_ON_CREDENTIALS)


class RunCounts(Struct, frozen=True, kw_only=True):
    """Counts of rows. `total` is None until it is known; `done` rows have an output, `failed` rows are in the errors file."""

    total: int | None = None
    done: int = 0
    failed: int = 0


class Run(Struct, frozen=True, kw_only=True):
    """What the store knows of one run. Moments are Unix seconds by Redis' clock. `driver` names the process that works on it
    and holds it until `driver_until`; `stage` says for a progress line what the driver does. `busy`: the share, 0 to 1, of the
    time of the slots that served the run in which their device ran its rows. `request`: "", "cancel". `drives`: how many were
    begun since the run last made progress, or a driver left it in order; above 1 a driver has died.

    `parts` counts the parts of a split run; its counts, rate and busy share are those of its parts together, and `driver` is
    one of theirs. The record of a part has `part`, and in `part_of` the id of its run; its `spec` is the run's.
    """

    id: str
    spec: RunSpec
    state: RunState
    created_at: float
    owner: str = ""
    counts: RunCounts = RunCounts()
    version: str = ""
    started_at: float | None = None
    finished_at: float | None = None
    rows_per_s: float = 0.0
    busy: float | None = None
    driver: str = ""
    driver_until: float = 0.0
    request: str = ""
    error_code: str = ""
    error_message: str = ""
    details: dict[str, Any] = {}
    drives: int = 0
    parts: int = 0
    part_of: str = ""
    part: RunPart | None = None

    @property
    def is_cut_short(self) -> bool:
        """Whether the run was cancelled or expired, and has published the rows that ran."""
        return self.state in (RunState.CANCELLED, RunState.EXPIRED) and bool(self.details.get("output"))

    @property
    def not_reached(self) -> int | None:
        """How many rows a cancelled or expired run did not reach; None for other runs, and if their number is not known."""
        if self.state not in (RunState.CANCELLED, RunState.EXPIRED) or self.counts.total is None:
            return None
        return self.counts.total - self.counts.done - self.counts.failed


def refuse_driven(name: str, info: VersionInfo | None) -> None:
    """Raises `Conflict` for a model of stages: runs over files cut their rows into shards, which only models with code run."""
    if info is not None and info.stages:
        raise Conflict(
            f"{name!r} is made of stages, and runs over files take models",
            hint=f"Submit the rows as jobs: POST /v1/models/{name}/jobs:batch takes a thousand in one request.",
        )


def retry_spec(run: Run) -> RunSpec:
    """The spec of a run that retries the failed rows of a completed one, with the same version, or those that a cancelled or
    expired one did not reach. Raises `Conflict`.
    """
    if run.spec.kind != FILES:
        raise Conflict(f"run {run.id} is no run over files, and the failed rows of others are not run again")
    if run.state is not RunState.COMPLETED and not run.is_cut_short:
        raise Conflict(f"run {run.id} is {run.state.value}", hint=f"complete it first: penstock run resume {run.id}")
    if not run.counts.failed and not run.is_cut_short:
        raise Conflict(f"no row of run {run.id} failed")
    if (run.spec.output_format or format_of(run.spec.output)) in DELIMITERS:
        raise Conflict(
            f"the output of run {run.id} is a table of texts, which do not say whether they were numbers: the outputs of the "
            "rows that did not fail cannot be read back",
            hint="run all rows again, with --overwrite; a run that writes .jsonl or .parquet can be retried",
        )
    # The repeated rows have failed before, and their run was completed all the same.
    metadata = run.spec.metadata | {RETRY_OF: run.id}
    return replace(run.spec, version=run.version, overwrite=True, max_failed="100%", metadata=metadata, parts=1)


# Tags: the words by which callers find their runs and jobs.


def checked_tag(text: str) -> str:
    """The tag; raises `BadRequest` for a text that cannot be one."""
    if not _TAG.fullmatch(text):
        raise BadRequest(f"a tag has 1 to 64 characters of A-Z a-z 0-9 . _ : = -, and {text[:80]!r} is none")
    return text


def checked_tags(texts: Iterable[str]) -> tuple[str, ...]:
    """Each tag once, in order. Raises `BadRequest` as `checked_tag` does, and for too many of them."""
    tags = tuple(dict.fromkeys(map(checked_tag, texts)))
    if len(tags) > MAX_TAGS:
        raise BadRequest(f"a job or run has at most {MAX_TAGS} tags, not {len(tags)}")
    return tags
