"""What extensions add to a gateway's models and jobs, and the words that jobs carry for them (docs/design/extensions.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.broker.records import SubmitStatus, Submitted
from penstock.errors import InvalidInput, PenstockError
from penstock.extension import installed, load_part
from penstock.gateway.models.parts import ModelsPart
from penstock.job import Job, JobId

if TYPE_CHECKING:
    from penstock.broker.blobs.files import BlobStore
    from penstock.broker.store.aio import AsyncStore
    from penstock.gateway.jobs.submitting.draft import Draft, SubmitRequest
    from penstock.gateway.jobs.submitting.submitter import Submitter
    from penstock.settings.tables import Settings
    from penstock.trace_context import TraceContext

# By the extension's name: what a request says to it, by the names of query parameters.
Said = Mapping[str, Mapping[str, str]]
# By the extension's name: what its functions in the store read of a job.
Words = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class WordsPart:
    """The word of one extension. Where `word` and `kept` return an empty text, the job has no word.

    `word` reads the request's parameters for the extension, given the draft and its model's name; raises a refusal. `is_asked`:
    whether to ask it about requests that have no such parameters and do not wait for an output. `kept`: the word of a job that
    was stored before. `refusals`: the errors for jobs of a model that the extension's functions refused to store.
    """

    word: Callable[[Mapping[str, str], Draft, str], str]
    is_asked: bool = False
    kept: Callable[[Job], Awaitable[str]] | None = None
    refusals: Mapping[SubmitStatus, Callable[[str], PenstockError]] = field(default_factory=dict)


# Called for each stored job whose version a chooser picked.
OnChosen = Callable[["Submitter", "SubmitRequest", JobId], None]


class Sending(Protocol):
    """The open span of one submit. One of its two ends is called."""

    @property
    def trace(self) -> TraceContext:
        """The context that the job carries."""

    def end_sent(self, job: JobId) -> None: ...

    def end_refused(self, kind: str) -> None: ...


class Tracer(Protocol):
    """Traces submits. `close`, which may block, is called once the gateway takes no more of them."""

    def begin(self, model: str, version: str, parent: TraceContext | None, *, size_bytes: int) -> Sending: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class JobsHost:
    """What a gateway lends to an extension before its doors are made."""

    settings: Settings
    store: AsyncStore
    blobs: BlobStore


@dataclass(frozen=True, slots=True)
class JobsPart:
    """What an extension adds to the models and jobs of a gateway."""

    words: WordsPart | None = None
    models: ModelsPart | None = None
    on_chosen: OnChosen | None = None
    tracer: Tracer | None = None


def jobs_parts(host: JobsHost) -> dict[str, JobsPart]:
    """The parts that the installed extensions add, by the extension's name."""
    return {one.name: load_part(one.jobs)(host) for one in installed() if one.jobs}


class WordReader:
    """The words of all extensions of a gateway."""

    def __init__(self, parts: Mapping[str, WordsPart]) -> None:
        self._parts = parts
        # The words of requests without parameters for extensions; usually empty.
        self.asked = tuple(name for name, part in parts.items() if part.is_asked)
        self._kept = {name: part.kept for name, part in parts.items() if part.kept is not None}

    def words_of(self, draft: Draft, said: Said, model: str) -> Words:
        """Raises `InvalidInput` for parameters that no extension of this gateway reads, and the extensions' own refusals."""
        if lacking := said.keys() - self._parts.keys():
            raise InvalidInput(f"this gateway has no extension {min(lacking)!r}, so nothing was stored")
        names = said.keys() if draft.is_awaited else {*said, *self.asked}
        words = {name: self._parts[name].word(said.get(name, {}), draft, model) for name in names}
        return {name: word for name, word in words.items() if word}

    async def kept(self, job: Job) -> Words:
        """The words of a stored job that its copy inherits."""
        words = {name: await kept(job) for name, kept in self._kept.items()}
        return {name: word for name, word in words.items() if word}

    def refusal(self, submitted: Submitted, model: str) -> PenstockError | None:
        """The error for a job that an extension refused to store."""
        refusals = (part.refusals.get(submitted.status) for part in self._parts.values())
        return next((refusal(model) for refusal in refusals if refusal is not None), None)
