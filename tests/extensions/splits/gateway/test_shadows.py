"""What a copy for a shadow keeps of its request, and what it leaves to the original."""

from __future__ import annotations

from dataclasses import replace

from penstock.broker.backlog import SlotCapacity
from penstock.extensions.splits.gateway.entry import split_entry
from penstock.extensions.splits.gateway.shadows import SHADOW_TAG, copied
from penstock.extensions.splits.split import Shadow, Split, kept_split
from penstock.gateway.auth.keys import Caller
from penstock.gateway.jobs.submitting.draft import SubmitRequest
from penstock.gateway.jobs.submitting.submit_options import SubmitOptions
from penstock.gateway.models.registry import ModelEntry, VersionEntry
from penstock.job import Payload, Priority
from penstock.model_spec import ModelInfo
from penstock.trace_context import TraceContext

VERSIONS = {name: VersionEntry(name, None, None, SlotCapacity(1)) for name in ("1", "2")}
KEPT = kept_split(Split("s", {"1": 100.0}, shadow=Shadow("2", 5.0)))
ENTRY = ModelEntry(ModelInfo("m"), VERSIONS["1"], VERSIONS, chooser=split_entry(KEPT, "m", VERSIONS))
ALICE = Caller(owner="alice", key_id="k", max_open_jobs=3)
REQUEST = SubmitRequest(
    ENTRY,
    replace(VERSIONS["1"], chosen={"splits": "s.0"}),
    Payload("application/json", b"7"),
    SubmitOptions(tags=("own",), deadline_s=5.0, query={"unit": "m"}),
    ALICE,
    key="key",
    words={"webhooks": "s e 1 https://a.example/"},
    fingerprint="f",
    trace=TraceContext("0" * 31 + "1", "0" * 15 + "1"),
)


def test_a_copy_runs_the_shadow_in_bulk_and_counts_there() -> None:
    copy = copied(REQUEST)
    assert (copy.version.name, copy.version.chosen, copy.input) == ("2", {"splits": "s.0"}, REQUEST.input)
    assert copy.options == SubmitOptions(priority=Priority.BULK, tags=(SHADOW_TAG,))


def test_a_copy_is_nobodys_so_that_it_counts_against_no_quota_and_answers_no_repeat() -> None:
    copy = copied(REQUEST)
    assert (copy.caller.owner, copy.caller.quota(1_000)) == ("", 0)
    assert (copy.key, copy.fingerprint, copy.trace, copy.words, copy.replay_of) == ("", "", None, {}, None)


def test_a_copy_is_not_copied_again() -> None:
    assert copied(REQUEST).model.chooser is None
