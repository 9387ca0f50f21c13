"""One call of every function that writes, over a queue that gives the call all there is to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing

from penstock.broker.contract import ReleaseReason
from penstock.broker.records import Ending, GiveBack, NewJob, Report
from penstock.broker.store import ops
from penstock.broker.store.registry import KeptTimes
from penstock.broker.store.sync import RedisStore
from penstock.extensions.webhooks.contract import AttemptEnd, EventOutcome
from penstock.extensions.webhooks.webhook import Webhook
from penstock.job import Call, JobState, Payload
from tests.contract.hooked import HOOK, Deliverer, ended, report_progress
from tests.contract.model_queue import STAMP, ModelQueue
from tests.contract.test_store_hand_over import Listener

LARGE = Payload("application/json", b'"' + b"x" * 200 + b'"')
Act = Callable[[], object]


def submit(queue: ModelQueue) -> Act:
    """New jobs of every kind: with keys and owners, of both priorities, a shard, a replay, a stock message."""
    failed = queue.leased()
    queue.fail(failed)
    jobs: Sequence[NewJob] = [
        queue.new(idempotency_key="k", fingerprint="f", owner="a"),
        queue.new(idempotency_key="k", fingerprint="f", owner="a"),
        queue.new(input=LARGE, owner="b", max_open_jobs=5),
        queue.new(call=Call.SHARD),
        queue.new(replay_of=failed.id, message=b"a message"),
        queue.new(owner="a", input=LARGE, delay_s=60.0, deadline_s=0.0, tags=("x", "y")),
        queue.new(owner="b", webhook=HOOK),
    ]
    return lambda: queue.store.submit(jobs)


def submit_to_a_waiting_slot(queue: ModelQueue) -> Act:
    """A slot has left an offer; it listens until the test's client is closed."""
    with closing(Listener(queue, "w1")):
        queue.claim("w1", offer=True)
    listener = Listener(queue, "w2")
    queue.claim("w2", limit=2, offer=True)
    jobs = [queue.new(input=LARGE), queue.new(owner="a"), queue.new()]

    def act() -> None:
        with closing(listener):
            queue.store.submit(jobs)

    return act


def claim(queue: ModelQueue) -> Act:
    """Owners in turn, jobs past their deadline, jobs that step over to the late band."""
    for owner in ("", "a", "b"):
        queue.submit(owner=owner, deadline_s=0.0, webhook=HOOK)
        queue.submit(owner=owner, deadline_s=5.0)
        queue.submit(owner=owner, input=LARGE)
        queue.bulk(owner=owner)
    return lambda: queue.claim("w1", limit=4, min_slack_s=10.0)


def claim_in_one_line(queue: ModelQueue) -> Act:
    for deadline_s in (0.0, 5.0, 1_000.0, 1_000.0):
        queue.submit(deadline_s=deadline_s)
    return lambda: queue.claim("w1", limit=2, min_slack_s=10.0)


def retire(queue: ModelQueue) -> Act:
    """Of the version, turns and an offer are left, what is learned of it, and the clock of its suspects."""
    queue.submit(owner="a")
    for worker in ("w2", "w3"):
        queue.claim(worker)
        queue.store.sweep(queue.name, gone=[worker])
    queue.finish(queue.take())
    queue.claim("w4", offer=True)
    assert isinstance(queue.store, RedisStore)
    queue.store.keep_learned_times(queue.name, "1 | cpu |  | 1", KeptTimes({1: 0.1}, 1.0))
    return lambda: queue.store.retire(queue.name, "1")


def retire_all(queue: ModelQueue) -> Act:
    job = queue.leased()
    queue.finish(job)
    queue.store.forget([job.id])
    return lambda: queue.store.retire(queue.name)


def reopen(queue: ModelQueue) -> Act:
    queue.store.retire(queue.name, "1")
    return lambda: queue.store.reopen(queue.name, "1", queue.store.retired(queue.name)["1"])


def advance(queue: ModelQueue) -> Act:
    return lambda: queue.store.advance(queue.name, 2)


def claim_a_suspect(queue: ModelQueue) -> Act:
    queue.crash(queue.leased())
    queue.submit()
    return lambda: queue.claim("w1")


def claim_a_shard(queue: ModelQueue) -> Act:
    queue.shard(deadline_s=0.0)
    queue.shard()
    return lambda: queue.claim("w1", shard=True)


def finish(queue: ModelQueue) -> Act:
    """Small and large outputs, a failure, a cancelled job, stock Celery's result, watchers, webhooks."""
    jobs = [
        queue.leased(owner="a", celery_id=f"celery-{queue.name}", reply_to="ps:gateway:g"),
        queue.leased(input=LARGE, webhook=HOOK),
    ]
    failed, cancelled = queue.leased(owner="a", webhook=HOOK), queue.leased(webhook=Webhook(HOOK.url, "s"))
    queue.store.cancel(cancelled.id)
    endings = [Ending(job.id, job.token, JobState.SUCCEEDED, output=LARGE) for job in (*jobs, cancelled)]
    endings.append(Ending(failed.id, failed.token, JobState.FAILED, error_code="bad_input", error_message="no number"))
    return lambda: queue.store.finish(endings, worker="w1", stamp=STAMP)


def report(queue: ModelQueue) -> Act:
    """A new stream, one that goes on, one that replaces that of an earlier attempt, and progress for a watcher."""
    hook = Webhook(HOOK.url, "sfcxp")
    first, second, again = (queue.leased(reply_to="ps:gateway:g", webhook=hook) for _ in range(3))
    queue.store.report([Report(job.id, job.token, chunks=(b"1",)) for job in (second, again)])
    queue.release(again)
    again = queue.take()
    reports = [Report(job.id, job.token, 0.5, "half", chunks=(b"1", b"2")) for job in (first, second, again)]
    return lambda: queue.store.report(reports)


def retry(queue: ModelQueue) -> Act:
    again, spent, cancelled = queue.leased(), queue.leased(max_attempts=1, webhook=HOOK), queue.leased()
    queue.store.cancel(cancelled.id)
    items = [GiveBack(job.id, job.token) for job in (again, spent, cancelled)]
    return lambda: queue.store.retry(items, worker="w1", delay_s=0.0, code="handler_error", message="again")


def release(queue: ModelQueue) -> Act:
    jobs = [queue.leased(), queue.leased(owner="a"), queue.leased()]
    queue.store.cancel(jobs[2].id)
    items = [GiveBack(job.id, job.token) for job in jobs]
    return lambda: queue.store.release(items, worker="w1", reason=ReleaseReason.DRAIN)


def release_crashed(queue: ModelQueue) -> Act:
    items = [GiveBack(job.id, job.token) for job in (queue.leased(), queue.leased(max_crashes=1, webhook=HOOK))]
    return lambda: queue.store.release(items, worker="w1", reason=ReleaseReason.CRASHED, detail="signal 9")


def extend(queue: ModelQueue) -> Act:
    """Jobs that ran for too long: queued again, given up, cancelled."""
    jobs = [queue.leased(), queue.leased(max_crashes=1, webhook=HOOK), queue.leased(webhook=HOOK)]
    queue.store.cancel(jobs[2].id)
    return lambda: queue.store.extend(queue.name, "w1", lease_s=60.0, max_run_s=0.0)


def sweep(queue: ModelQueue) -> Act:
    """Two lost workers, due retries, jobs past their deadline in every line, results past their time."""
    for worker in ("w1", "w2"):
        queue.leased(worker, lease_s=60.0)
        cancelled = queue.leased(worker, lease_s=60.0, webhook=HOOK)
        queue.store.cancel(cancelled.id)
    queue.retry(queue.leased("w3"), worker="w3")
    done = queue.leased("w3", result_ttl_s=0.0, owner="a", tags=("x", "y"))
    queue.finish(done, worker="w3", output=LARGE)
    queue.fail(queue.leased("w3", result_ttl_s=0.0), worker="w3")
    for owner in ("", "a"):
        queue.submit(owner=owner, deadline_s=0.0, webhook=HOOK)
        queue.bulk(owner=owner, deadline_s=0.0)
    queue.shard(deadline_s=0.0)
    delivered, _, old = (ended(queue, result_ttl_s=0.0, owner="a") for _ in range(3))
    deliverer = Deliverer(queue)
    deliverer.settle(next(event for event in deliverer.take(lease_s=0.0, per_endpoint=8) if event.id == delivered.serial))
    deliverer.age(old, 49 * 3_600.0)
    return lambda: queue.store.sweep(queue.name, gone=["w1", "w2"])


def cancel(queue: ModelQueue) -> Act:
    job = queue.submit(owner="a", celery_id=f"celery-{queue.name}", webhook=HOOK)
    return lambda: queue.store.cancel(job, owner="a")


def cancel_running(queue: ModelQueue) -> Act:
    job = queue.leased()
    return lambda: queue.store.cancel(job.id)


def forget(queue: ModelQueue) -> Act:
    jobs = [queue.leased(), queue.leased(input=LARGE)]
    for job in jobs:
        queue.finish(job, output=LARGE)
    return lambda: queue.store.forget([job.id for job in jobs])


def take_events(queue: ModelQueue) -> Act:
    """A lost deliverer, progress under way before an end, a closed URL, a closed endpoint with what is too old."""
    deliverer, hook = Deliverer(queue), Webhook("https://b.example/", "sp")
    running = queue.leased(webhook=hook)
    report_progress(queue, running, 0.5, "half")
    ended(queue, owner="a")
    deliverer.take(lease_s=0.0, per_endpoint=8)
    queue.finish(running)
    closed, gone = Webhook("https://c.example/"), Webhook("https://d.example/")
    for hook, outcome, pause_s in ((closed, EventOutcome.AGAIN, 60.0), (gone, EventOutcome.GONE, 0.0)):
        for _ in range(2):
            ended(queue, hook)
        event = next(event for event in deliverer.take(lease_s=0.0) if event.url == hook.url)
        deliverer.settle(event, AttemptEnd(outcome, "an answer", pause_s=pause_s))
    return lambda: deliverer.take(lease_s=0.0, give_up_s=0.0)


def _settle(outcome: EventOutcome, **more: float) -> Callable[[ModelQueue], Act]:
    def settle_event(queue: ModelQueue) -> Act:
        ended(queue, owner="a")
        deliverer = Deliverer(queue)
        event = deliverer.take_one(lease_s=0.0)
        return lambda: deliverer.settle(event, AttemptEnd(outcome, "an answer"), **more)

    settle_event.__name__ += f"_{outcome}_{len(more)}"
    return settle_event


def settle_progress(queue: ModelQueue) -> Act:
    job, deliverer = queue.leased(webhook=Webhook(HOOK.url, "sp")), Deliverer(queue)
    report_progress(queue, job, 0.5, "half")
    event = deliverer.take_one(lease_s=0.0)
    queue.finish(job)
    return lambda: deliverer.settle(event)


def _send(verb: str) -> Callable[[ModelQueue], Act]:
    def send_events(queue: ModelQueue) -> Act:
        job, deliverer = ended(queue, owner="a"), Deliverer(queue)
        deliverer.settle(deliverer.take_one(), AttemptEnd(EventOutcome.GONE, "410"))
        send = deliverer.outbox.send_again if verb == "again" else deliverer.outbox.dismiss
        return lambda: send([job.serial])

    send_events.__name__ += f"_{verb}"
    return send_events


def watch(queue: ModelQueue) -> Act:
    job = queue.submit()
    assert isinstance(queue.store, RedisStore)
    run, operation = queue.store.run, ops.watch(job, channel="ps:gateway:g", every_change=True)
    return lambda: run(operation)


SCENARIOS: list[Callable[[ModelQueue], Act]] = [
    submit,
    submit_to_a_waiting_slot,
    claim,
    claim_in_one_line,
    retire,
    retire_all,
    reopen,
    advance,
    claim_a_suspect,
    claim_a_shard,
    finish,
    report,
    retry,
    release,
    release_crashed,
    extend,
    sweep,
    cancel,
    cancel_running,
    forget,
    watch,
    take_events,
    *(_settle(outcome) for outcome in EventOutcome),
    _settle(EventOutcome.AGAIN, give_up_s=0.0),
    settle_progress,
    _send("again"),
    _send("dismiss"),
]
