"""No room left: in the store's memory, on its disk, on the disk of the blobs: F22 to F24."""

from __future__ import annotations

import resource
import time
from typing import Any

from tests.eventually import eventually
from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.face import Answer
from tests.faults.scenarios.store_loss import still_there
from tests.faults.server import UNLIMITED
from tests.faults.stack import Plan, Stack, bare_stack, whole_stack
from tests.faults.steps import conclude, echoes, healed_now

_LARGE = 200_000
_KIB = 1024


def submit_until_refused(stack: Stack, *, most: int = 5_000, **fields: Any) -> Answer | None:
    """Submit one by one until an answer is no 202, and is none when asked for again; that answer."""
    for _ in range(most):
        work = order(**fields)
        entry = stack.driver.submit(work, within_s=0.0)
        if entry.answers[-1][1] != 202:
            # A job that ended meanwhile may have made room.
            answer = stack.face.submit(work["nonce"], work)[0]
            if answer.status != 202:
                return answer
    return None


def _refused_well(answer: Answer | None) -> list[str]:
    if answer is None:
        return ["admission never stopped"]
    good = answer.status == 503 and "retry-after" in answer.headers
    return [] if good else [f"refused with {answer.status} {answer.body[:200]!r}"]


@fault("F22", "the store's memory is full: admission stops, what was accepted ends")
def memory_full(setting: Setting) -> Verdict:
    with whole_stack(Plan(model={"max_batch_size": 8}), setting.folder) as stack:
        return fill_memory(stack)


def fill_memory(stack: Stack) -> Verdict:
    stack.driver.submit_all(echoes(10, seconds=0.2))
    complaints = _fill_memory(stack)
    # Nobody makes room: the jobs themselves must.
    return conclude(stack, "F22", healed_now(stack), most_extra=0, complaints=[*complaints, *still_there(stack)])


@fault("F22-start", "a worker starts while the store's memory is full")
def memory_full_at_start(setting: Setting) -> Verdict:
    with bare_stack(Plan(model={"max_batch_size": 8}), setting.folder) as stack:
        stack.gateway.start()
        stack.await_gateway()
        complaints = _fill_memory(stack)
        hit = healed_now(stack)
        stack.workers[0].start()
        stack.driver.await_ends(stack.driver.ledger.accepted(), within_s=20.0)
        # What was accepted needed no room; predictions do.
        with stack.server.client() as client:
            client.config_set("maxmemory", 0)
        return conclude(stack, "F22-start", hit, within_s=20.0, most_extra=0, complaints=complaints)


def _fill_memory(stack: Stack) -> list[str]:
    with stack.server.client() as client:
        used: Any = client.info("memory")
        client.config_set("maxmemory", used["used_memory"] + 300 * _KIB)
    return _refused_well(submit_until_refused(stack, pad_in="x" * 8_000))


@fault("F23", "the disk of the store's log is full (everysec): refuse, heal when there is room")
def log_disk_full(setting: Setting) -> Verdict:
    with whole_stack(Plan(fsync="everysec"), setting.folder) as stack:
        stack.driver.submit_all(echoes(10))
        stack.server.limit_files(stack.server.log_file.stat().st_size + 64 * _KIB)
        complaints = _refused_well(submit_until_refused(stack, pad_in="x" * 4_000))
        complaints += _unready(stack)
        stack.server.limit_files(UNLIMITED)
        hit = healed_now(stack)
        eventually(lambda: stack.driver.submit(order(), within_s=0.0).job, timeout_s=10.0)
        complaints += still_there(stack)
        return conclude(stack, "F23", hit, complaints=complaints)


@fault("F23-always", "the disk of the store's log is full (always): the store exits, heals when started with room")
def log_disk_full_always(setting: Setting) -> Verdict:
    with whole_stack(Plan(fsync="always"), setting.folder) as stack:
        stack.driver.submit_all(echoes(10))
        stack.server.limit_files(stack.server.log_file.stat().st_size + 64 * _KIB)
        complaints = _refused_well(submit_until_refused(stack, pad_in="x" * 4_000))
        code = stack.server.wait()
        stack.server.start()
        hit = healed_now(stack)
        complaints += still_there(stack)
        return conclude(stack, "F23-always", hit, notes=f"the store exited with {code}", complaints=complaints)


def _unready(stack: Stack) -> list[str]:
    status = eventually(lambda: (found := stack.face.ask("GET", "/readyz").status) != 200 and found, timeout_s=10.0)
    return [] if status == 503 else [f"readiness answers {status}"]


@fault("F24", "the disk of the blobs is full: uploads are refused, results wait")
def blob_disk_full(setting: Setting) -> Verdict:
    with whole_stack(Plan(), setting.folder) as stack:
        stack.driver.submit_all(echoes(5))
        _limit(stack, 128 * _KIB)
        large = order(pad_in="x" * _LARGE)
        answer, _ = stack.face.submit(large["nonce"], large)
        complaints = _refused_well(answer)
        waiting = stack.driver.submit_all(echoes(3, pad=_LARGE))
        time.sleep(2.0)
        complaints += [f"{path} is a torn blob" for path in stack.blobs()]
        _limit(stack, UNLIMITED)
        hit = healed_now(stack)
        complaints += [] if waiting else ["nothing was accepted"]
        complaints += still_there(stack)
        return conclude(stack, "F24", hit, complaints=complaints)


def _limit(stack: Stack, size: int) -> None:
    """No file that the gateway or the worker itself writes may grow past `size`."""
    for group in (stack.gateway, stack.workers[0]):
        resource.prlimit(group.pid, resource.RLIMIT_FSIZE, (size, UNLIMITED))
