"""The gateway dies, freezes or is told to stop: F14 to F16."""

from __future__ import annotations

import signal
import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor

from tests.faults.catalogue import Setting, fault
from tests.faults.checker import Verdict
from tests.faults.driver import order
from tests.faults.echo import digest
from tests.faults.face import Answer
from tests.faults.flow import Flow
from tests.faults.stack import MODEL, Plan, Stack, whole_stack
from tests.faults.steps import conclude, echoes, healed_now


@fault("F14", "kill -9 of the gateway after the commit, before the reply")
def killed_before_reply(setting: Setting) -> Verdict:
    with whole_stack(Plan(), setting.folder) as stack:
        return kill_before_reply(stack, rounds=setting.count(2, 15))


def kill_before_reply(stack: Stack, *, rounds: int) -> Verdict:
    complaints: list[str] = []
    for _ in range(rounds):
        stack.gateway.stop()
        work = order()
        entry = stack.driver.ledger.open_entry(work["nonce"], digest(work), "succeeded")
        # The submit that the gateway dies of must be this one.
        with stack.asker.still():
            stack.gateway.start(PENSTOCK_FAULT="after_submit_before_reply:kill")
            stack.await_gateway()
            answered = stack.driver.submit_once(entry, work)
            stack.gateway.wait()
        stored = stack.made()
        stack.gateway.start()
        stack.await_gateway()
        stack.driver.submit(work)
        again = stack.made()
        complaints += ["the gateway answered before it died"] if answered else []
        complaints += [f"the retry made another job: {stored}, then {again}"] if stored != again else []
    return conclude(stack, "F14", most_extra=0, notes=f"{rounds} kills, each key made one job", complaints=complaints)


@fault("F15", "kill -9 of the gateway at random under load")
def killed_under_load(setting: Setting) -> Verdict:
    kills, random = setting.count(3, 15), setting.random
    with whole_stack(Plan(), setting.folder) as stack:
        with Flow(stack.driver, threads=8, per_second=200.0).running():
            for _ in range(kills):
                time.sleep(random.uniform(0.5, 1.5))
                stack.gateway.kill()
                stack.gateway.start()
                stack.await_gateway()
            hit = healed_now(stack)
        keys, made = len(stack.driver.ledger.entries), stack.made()
        complaints = [f"{keys} keys made {made} jobs"] if keys != made else []
        return conclude(stack, "F15", hit, most_extra=0, notes=f"{kills} kills, {keys} keys", complaints=complaints)


@fault("F15-frozen", "SIGSTOP of the gateway under load for longer than the lease, then SIGCONT")
def frozen_under_load(setting: Setting) -> Verdict:
    """Workers need no gateway. Clients give up and try again under their keys; on waking, the gateway answers what it finds."""
    lease_s, frozen_s = (3.0, 5.0) if not setting.full else (15.0, 20.0)
    with whole_stack(Plan(lease_s=lease_s, beat_s=lease_s / 4), setting.folder) as stack:
        with stack.driver.watching(), Flow(stack.driver, threads=8, per_second=100.0).running():
            time.sleep(1.0)
            stack.gateway.signal_all(signal.SIGSTOP)
            time.sleep(frozen_s)
            stack.gateway.signal_all(signal.SIGCONT)
            hit = healed_now(stack)
            time.sleep(1.0)
        keys, made = len(stack.driver.ledger.entries), stack.made()
        complaints = [f"{keys} keys made {made} jobs"] if keys != made else []
        notes = f"frozen {frozen_s:g} s, lease {lease_s:g} s, {keys} keys"
        return conclude(stack, "F15-frozen", hit, most_extra=0, notes=notes, complaints=complaints)


@fault("F16", "SIGTERM of the gateway with long polls and an upload under way")
def told_to_stop(setting: Setting) -> Verdict:
    polls = setting.count(8, 50)
    with whole_stack(Plan(model={"max_batch_size": 1}), setting.folder) as stack, ThreadPoolExecutor(polls) as pool:
        entries = stack.driver.submit_all(echoes(polls, seconds=1.5 / polls))
        begun = [pool.submit(stack.face.ask, "GET", f"/v1/jobs/{entry.job}/result?wait=20") for entry in entries]
        upload = _half_an_upload(stack.gateway_port)
        time.sleep(0.3)
        since = time.monotonic()
        stack.gateway.signal(signal.SIGTERM)
        unready_s = _unready_after(stack, since)
        upload.sendall(_BODY[len(_BODY) // 2 :])
        answered = upload.recv(64)
        upload.close()
        complaints = _complaints(begun, answered, unready_s)
        stack.gateway.wait()
        stack.gateway.start()
        stack.await_gateway()
        left = list((stack.folder / "state").rglob("*.new"))
        complaints += [f"files left: {left}"] if left else []
        return conclude(stack, "F16", most_extra=0, notes=f"not ready after {unready_s * 1e3:.0f} ms", complaints=complaints)


_BODY = b'{"nonce":"upload","do":"echo"}'


def _half_an_upload(port: int) -> socket.socket:
    head = f"POST /v1/models/{MODEL}/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    link = socket.create_connection(("127.0.0.1", port), timeout=15.0)
    link.sendall(f"{head}content-length: {len(_BODY)}\r\n\r\n".encode() + _BODY[: len(_BODY) // 2])
    return link


def _unready_after(stack: Stack, since: float) -> float:
    """Seconds until a new client is no longer told that the gateway is ready."""
    while stack.face.ask("GET", "/readyz").status == 200:
        stack.face.close()
    return time.monotonic() - since


def _complaints(begun: list[Future[Answer]], upload: bytes, unready_s: float) -> list[str]:
    statuses = [poll.result().status for poll in begun]
    broken = [status for status in statuses if status not in (200, 202)]
    found = [f"long polls were answered {broken}"] if broken else []
    found += [] if upload.startswith(b"HTTP/1.1 202") else [f"the upload was answered {upload!r}"]
    return found + ([f"ready for {unready_s:.2f} s after SIGTERM"] if unready_s > 0.2 else [])
