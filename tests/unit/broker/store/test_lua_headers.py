"""Facts that stand both in Lua and in Python are equal: the arguments of every function, and constants."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.access import Key, Role
from penstock.broker.contract import JobIndex, ReleaseReason
from penstock.broker.protocol import join
from penstock.broker.records import PUSHED_BYTES, BatchStamp, ClaimRequest, Ending, GiveBack, NewJob, Report
from penstock.broker.run_contract import RunChange
from penstock.broker.store import audit, ops, registry, run_ops, sync
from penstock.broker.store.library import words
from penstock.broker.store.positions import tokens
from penstock.broker.store.registry import StoredModel
from penstock.extensions.celery_clients import ops as celery_ops
from penstock.extensions.history import store as history
from penstock.extensions.pipelines import store as pipelines
from penstock.extensions.splits import store as splits
from penstock.extensions.splits.figures import PER_DOUBLING
from penstock.extensions.webhooks.contract import AttemptEnd, DueEvent, EventOutcome, TakeLimits
from penstock.extensions.webhooks.store import outbox
from penstock.job import BANDS, LATE_BAND, JobState, Payload, Priority, new_job_id
from penstock.model_spec import MAX_BATCH_SIZE, SlotLocation, WorkerInfo
from penstock.run import RunCounts, RunPart, RunSpec, RunState
from tests.lua_files import LUA
from tests.oracle import claim, model_queue, record

JOB = new_job_id("m")
NEW = NewJob(JOB, "1", Payload("application/json", b"7"))
ENDING = Ending(JOB, "1:w:n", JobState.SUCCEEDED, Payload("application/json", b"7"))
BACK = GiveBack(JOB, "1:w:n")
REPORT = Report(JOB, "1:w:n", 0.5, "half", chunks=(b"1", b"2"))
STAMP = BatchStamp()
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
NUMBERS = tokens(len(words()))
EVENT = DueEvent("e", "1", "https://a.example/", "", "s", "job.succeeded", 1, 0.0, "", 1)


def operations(items: int) -> list[ops.Operation[Any]]:
    """Return one call of every function, with this number of items for functions that take items."""
    return [
        ops.submit([NEW] * max(1, items), 10),
        ops.claim(ClaimRequest("m", "1", "w", "n", 8)),
        ops.extend("m", "w", lease_s=1.0, max_run_s=1.0, progressed=[JOB] * items),
        ops.finish([ENDING] * max(1, items), worker="w", stamp=STAMP),
        ops.report([REPORT] * max(1, items)),
        ops.follow(JOB, mark="1.0", seen=1, limit=10, with_output=True),
        ops.retry([BACK] * max(1, items), worker="w", delay_s=1.0, code="c", message="m", traceback=""),
        ops.release([BACK] * max(1, items), worker="w", reason=ReleaseReason.DRAIN, detail=""),
        ops.sweep("m", gone=["w"] * items, limit=10),
        ops.absent("m", sweeper="w", pace_s=1.0, again_s=1.0),
        ops.cancel(JOB, owner=""),
        ops.forget([JOB] * max(1, items)),
        ops.reconcile("m", cursor="0", limit=10),
        ops.reconcile_next("m", pace_s=1.0, heal_s=0.1, limit=10),
        history.note_history("m", history.HistoryWrite("w", 1, 13.0, 1, 0, history.HistoryCounts())),
        history.read_history("m", 0),
        celery_ops.reject_foreign("m", celery_ops.Rejected(b"", "", "")),
        celery_ops.draw_door(),
        celery_ops.draw_queue("m"),
        celery_ops.pass_messages([("m", b"message")] * items),
        celery_ops.due_answers(8),
        celery_ops.answer(JOB, [celery_ops.Sent("task", "id", b"{}")] * items),
        celery_ops.may_send("celery"),
        pipelines.begin_drive(JOB),
        pipelines.undriven("m", done=[b"e"] * items),
        ops.read(JOB),
        ops.result(JOB),
        ops.watch(JOB, channel="c", every_change=False),
        ops.kept_input(JOB),
        ops.ended([JOB] * max(1, items)),
        ops.newest("m", JobIndex.ALL, owner="", before="", limit=10, tag=""),
        ops.records([JOB] * max(1, items)),
        ops.dismiss([JOB] * max(1, items)),
        ops.purge("m", limit=10),
        ops.stats("m"),
        ops.unfinished("m", "1"),
        ops.retire("m", "1"),
        ops.reopen("m", "1", 1),
        ops.advance("m", 1),
        ops.demand("m", ["1"] * items),
        join("worker w", 1, 1),
        registry.announce_worker(WorkerInfo("w", "here", 1, 0.0), ttl_s=1.0),
        ops.withdraw("m", "1", "w"),
        registry.withdraw_worker("w"),
        registry.announce_location(SlotLocation("s", "w", "cpu", "")),
        registry.keep_learned_times("m", "k", registry.KeptTimes({}, 0.0)),
        registry.identity("n"),
        registry.swap_model("m", StoredModel(), None),
        splits.count_split("m", "s", {f"f{number}": 1 for number in range(items)}),
        run_ops.create("r", RunSpec(model="m", input="i", output="o"), owner="", keep_s=1.0),
        run_ops.room("o", 1),
        run_ops.take("r", "d", lease_s=1.0),
        run_ops.split("r", "d", [RunPart(number=number, first=0, stop=1) for number in range(items)], RunCounts()),
        run_ops.parts("r"),
        run_ops.next_of("r"),
        run_ops.look(2, without=["r"] * items),
        run_ops.update("r", "d", RunChange(state=RunState.RUNNING) if items else RunChange(), lease_s=1.0),
        run_ops.reopen("r", None),
        run_ops.ask_cancel("r", owner=None),
        run_ops.read("r"),
        run_ops.page(owner=None, states=[RunState.RUNNING] * items, after="", limit=10, keep_s=1.0),
        run_ops.drop("r", owner=None),
        outbox.take("p", TakeLimits(skip_owners=["o"] * items)),
        outbox.settle("p", EVENT, AttemptEnd(EventOutcome.AGAIN, "500"), give_up_s=1.0),
        outbox.send_events("p", "again", ["e"] * items, None),
        outbox.undelivered("p", owner="", before="", limit=10),
        outbox.logs("p", ["e"] * items),
        outbox.counts("p"),
        registry.put_key(None, registry.StoredKey(Key("k", "0" * 64, frozenset(Role), "o"), 0.0)),
        audit.note_act(audit.Act("pause")),
        audit.end_act(1, audit.Act("pause"), "done"),
        audit.read_acts(),
        registry.spend("g", [registry.KeySpending("k", 1.0, 1.0, 0.0, 0.0)] * items, ttl_s=1.0),
    ]


def names_of(text: str) -> list[str]:
    """Return the comma-separated arguments of a header; a comma in parentheses does not separate, and `words` are several."""
    plain = re.sub(r"\([^)]*\)", "", text).strip()
    named = [] if plain in ("", "none") else [part.strip() for part in plain.split(",")]
    return [*named[:-1], *words()] if named[-1:] == ["words"] else named


def headers() -> dict[str, tuple[list[str], list[str]]]:
    """Return for each function its fixed arguments and the arguments of each item, as its header comment lists them."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    name = ""
    for line in re.sub(r"\n--  +", " ", "\n".join(LUA.values())).splitlines():
        if match := re.match(r"-- ([a-z_]+): ", line):
            name = match[1]
        elif line.startswith("-- ARGS: "):
            fixed, _, item = f"; {line.removeprefix('-- ARGS: ')}".partition("; per ")
            found[name] = (names_of(fixed.removeprefix("; ")), names_of(item.partition(":")[2].partition("; then")[0]))
    return found


@pytest.mark.parametrize("items", [0, 1, 3])
def test_every_function_gets_the_arguments_that_its_header_names(items: int) -> None:
    for operation in operations(items):
        fixed, item = headers()[operation.function]
        rest = len(operation.args) - len(fixed)
        assert rest >= 0, operation
        assert rest % len(item) == 0 if item else rest == 0, operation


def test_every_registered_function_has_a_header_and_an_operation() -> None:
    registered = {name for text in LUA.values() for name in re.findall(r"^register\('(\w+)'", text, re.MULTILINE)}
    assert registered == headers().keys() == {operation.function for operation in operations(1)}


_WRITES = re.compile(r"^register\('(\w+)', \w+, \{(?!'no-writes')", re.MULTILINE)
WRITING = [name for file, text in LUA.items() if file not in ("runs", "read") for name in _WRITES.findall(text)]


@pytest.mark.parametrize("name", WRITING)
def test_a_function_that_writes_says_what_its_largest_call_is(name: str) -> None:
    blocks = [block for text in LUA.values() for block in re.split(r"\n(?!--)", text)]
    [header] = [block for block in blocks if re.search(rf"^-- {name}: ", block, re.MULTILINE)]
    assert re.search(r"^-- LARGEST: \S", header, re.MULTILINE), f"{name} has no line LARGEST"


def test_the_arguments_of_an_item_are_as_many_as_the_stride() -> None:
    assert int(NUMBERS["submit.stride_told"]) == len(headers()["submit"][1]) + len(words())
    assert int(NUMBERS["submit.stride"]) == len(headers()["submit"][1])
    assert int(NUMBERS["report.stride"]) == len(headers()["report"][1])
    assert int(NUMBERS["finish.stride"]) == len(headers()["finish"][1])


def number(file: str, name: str) -> int:
    """Return a constant of a Lua file, also if one line sets several constants."""
    for names, values in re.findall(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = ([\d, ]+)", LUA[file], re.MULTILINE):
        constants = dict(zip(names.split(", "), values.split(", "), strict=True))
        if name in constants:
            return int(constants[name])
    raise AssertionError(f"{file}.lua has no constant {name}")


def test_a_submit_holds_as_many_jobs_as_the_function_takes() -> None:
    assert number("submit", "SUBMIT_MAX") == sync.SUBMIT_MAX
    assert number("forget", "FORGET_MAX") == sync.FORGET_MAX
    assert number("report", "PUSHED_BYTES") == PUSHED_BYTES
    assert number("deliver", "SEND_MAX") == number("deliver", "LOGS_MAX") == outbox.SEND_MAX


def test_the_bands_are_those_of_the_priorities() -> None:
    [bands] = re.findall(r"^local BANDS = \{([\d, ]+)\}", LUA["lib"], re.MULTILINE)
    assert tuple(map(int, bands.split(", "))) == BANDS
    assert number("lib", "LATE") == LATE_BAND
    assert number("lib", "SHARD_BAND") == Priority.BULK.band


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("lib", "WEIGHT", model_queue.LOST_PLACE),
        ("lib", "SUSPECT_LOSSES", record.SUSPECT_LOSSES),
        ("lib", "MAX_LOST_IN_A_ROW", record.MAX_LOST_IN_A_ROW),
        ("lib", "MAX_LOSSES", record.MAX_LOSSES),
        ("lib", "CLAIM_MAX", MAX_BATCH_SIZE),
        ("lib", "PAST_FIRST", record.PAST_FIRST),
        ("lib", "PAST_LAST", record.PAST_LAST),
        ("lib", "TOMB_MIN_MS", model_queue.TOMBSTONE_MIN_S * 1000),
        ("lib", "TOMB_MAX_MS", model_queue.TOMBSTONE_MAX_S * 1000),
        ("submit", "RUN_PAST_DEADLINE_MS", model_queue.RUN_PAST_DEADLINE_S * 1000),
        ("claim", "FEW", model_queue.FEW),
        ("claim", "BULK_TURN", claim.BULK_TURN),
        ("claim", "SOLO_AGAIN_MS", claim.SOLO_AGAIN_S * 1000),
    ],
)
def test_the_oracle_has_the_constants_of_the_functions(file: str, name: str, value: float) -> None:
    assert number(file, name) == value


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("outbox", "UNDELIVERED_MAX", 1_000),
        ("outbox", "UNDELIVERED_MS", DAY_MS),
        ("outbox", "LOG_MOST", 20),
        ("deliver", "TRIP", 5),
        ("deliver", "PAUSE_MOST_MS", HOUR_MS),
        ("deliver", "RETRY_MOST_MS", DAY_MS),
        ("deliver", "GONE_MS", DAY_MS),
        ("deliver", "SKIP_MS", 1_000),
        ("deliver", "PROGRESS_TRIES", 3),
        ("sweep", "HOLD_MS", 60_000),
        ("outbox", "HELD_MOST_MS", 2 * DAY_MS),
    ],
)
def test_the_limits_of_the_outbox_are_those_that_are_documented(file: str, name: str, value: int) -> None:
    """Most of them take hours or days to show (docs/design/webhooks.md, `extensions/webhooks/contract.py`)."""
    assert number(file, name) == value


def test_progress_has_the_pace_that_is_documented() -> None:
    assert "\nown.PROGRESS_MS = 500 " in LUA["outbox"]


def test_both_sides_forget_idempotency_keys_after_the_same_time() -> None:
    assert ops.IDEMPOTENCY_TTL_S == model_queue.IDEMPOTENCY_S


def test_arguments_are_counted_without_their_remarks() -> None:
    assert names_of("serial, terms (most attempts, most crashes), call ('' | explain)") == ["serial", "terms", "call"]
    assert names_of("none") == []


def test_durations_are_counted_in_the_buckets_in_which_they_are_read() -> None:
    assert f"math.log(2) * {PER_DOUBLING})" in LUA["split"]
