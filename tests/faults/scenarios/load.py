"""More than fits: three times the capacity, and clients that hardly move: F29 and F31."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import quantiles

import psutil

from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.flow import Flow, timed
from tests.faults.stack import MODEL, Plan, Stack, whole_stack
from tests.faults.steps import conclude, echoes

ITEM_S = 0.05
DEADLINE_S = 2.0
_KIB = 1024


@fault("F29", "three times the capacity, each job with a deadline of 2 s")
def overloaded(setting: Setting) -> Verdict:
    lasting_s = float(setting.count(15, 60))
    plan = Plan(model={"max_batch_size": 4, "deadline_s": DEADLINE_S}, options={"warm_s": ITEM_S})
    with whole_stack(plan, setting.folder) as stack:
        # One child runs one item at a time: its capacity is known.
        capacity = 1.0 / ITEM_S
        flow = Flow(stack.driver, threads=8, per_second=3 * capacity, make=lambda: order("sleep", seconds=ITEM_S), within_s=0.0)
        with flow.running():
            time.sleep(lasting_s)
        verdict = conclude(stack, "F29", within_s=DEADLINE_S + 20.0)
        return _goodput(stack, verdict, capacity * lasting_s)


def _goodput(stack: Stack, verdict: Verdict, possible: float) -> Verdict:
    """What was accepted and then missed its deadline is a promise broken; what was done is measured against the possible."""
    entries = stack.driver.ledger.accepted()
    done = sum(entry.last is not None and entry.last.status == "succeeded" for entry in entries)
    missed = len(entries) - done
    share, misses = done / possible, missed / max(1, len(entries))
    complaints = [text for text in verdict.complaints if not text.startswith("gave up")]
    complaints += [f"goodput is {share:.0%} of capacity, 90 % asked"] if share < 0.9 else []
    complaints += [f"{misses:.1%} of the accepted jobs missed their deadline, 1 % allowed"] if misses > 0.01 else []
    notes = f"goodput {share:.0%} of capacity, {misses:.1%} of accepted jobs late, {len(stack.driver.ledger.entries)} offered"
    return replace(verdict, passed=not complaints, complaints=tuple(complaints), notes=notes)


@fault("F31", "clients that send one byte per second")
def slow_clients(setting: Setting) -> Verdict:
    clients = setting.count(100, 200)
    with whole_stack(Plan(), setting.folder) as stack:
        _latencies(stack, 100)
        before, memory = _latencies(stack, 300), _memory(stack)
        with _slow_uploads(stack.gateway_port, clients):
            stack.driver.submit_all(echoes(20))
            during, grown = _latencies(stack, 300), _memory(stack) - memory
        complaints = []
        if during > 2 * before + 0.005:
            complaints.append(f"p99 of the others {during * 1e3:.1f} ms, {before * 1e3:.1f} ms before")
        if grown > clients * 64 * _KIB:
            complaints.append(f"{grown // _KIB} KiB for {clients} slow clients")
        notes = f"p99 {before * 1e3:.1f} -> {during * 1e3:.1f} ms, {grown / clients / _KIB:.0f} KiB each"
        return conclude(stack, "F31", most_extra=0, notes=notes, complaints=complaints)


def _latencies(stack: Stack, count: int) -> float:
    """The 99th percentile of that many status reads, in seconds."""
    return quantiles([timed(lambda: stack.face.ask("GET", "/v1/models"))[1] for _ in range(count)], n=100)[98]


def _memory(stack: Stack) -> int:
    return int(psutil.Process(stack.gateway.pid).memory_info().rss)


@contextmanager
def _slow_uploads(port: int, clients: int) -> Iterator[None]:
    """Connections that have begun a request and are in no hurry; each sends a byte when entered, and none after."""
    head = f"POST /v1/models/{MODEL}/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    links = [socket.create_connection(("127.0.0.1", port), timeout=10.0) for _ in range(clients)]
    try:
        for link in links:
            link.sendall(f"{head}content-length: 100000\r\n\r\n{{".encode())
        time.sleep(1.0)
        for link in links:
            link.sendall(b'"')
        yield
    finally:
        for link in links:
            link.close()
