"""Many readers at once: each asks for one stream after another, in one of three ways, reads to its end, and judges it."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.faults.driver import order
from tests.faults.echo import digest
from tests.faults.ledger import Entry
from tests.faults.stack import MODEL, Stack
from tests.faults.streams.heard import Heard
from tests.faults.streams.reader import LINES, SSE, Stream, events_stream, hear

# Of every stream, the least and the most chunks.
CHUNKS = (15, 45)
# A reader of a job's events now and then hangs up by itself, after one event in so many.
_HANGS_UP = 60
_AGAIN_S = 0.05
# After this time a stream counts as one without an end.
_WITHIN_S = 90.0
_MOST_SHOWN = 8


class Audience:
    """`live` are the streams that are being read, by reader; `read_whole` counts those read to the end."""

    def __init__(self, stack: Stack, *, readers: int, pace_s: float, random: Random) -> None:
        self._stack = stack
        self._port = stack.gateway_port
        self._readers = readers
        self._pace_s = pace_s
        self._random = random
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.live: dict[int, Heard] = {}
        self.results: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read while the block runs, and then to the end of every stream that has begun."""
        with ThreadPoolExecutor(self._readers) as pool:
            readers = [pool.submit(self._read_on, number) for number in range(self._readers)]
            try:
                yield
            finally:
                self._stop.set()
            for reader in readers:
                reader.result()

    def in_midstream(self) -> list[Heard]:
        return [heard for heard in list(self.live.values()) if heard.is_in_midstream]

    def read_again(self) -> None:
        """Read every stream once more from its beginning: who comes late hears the last run alone, and the same result."""
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(self._read_again, sorted(self.results)))

    def complaints(self) -> list[str]:
        more = [f"and {len(self.faults) - _MOST_SHOWN} more"] if len(self.faults) > _MOST_SHOWN else []
        return self.faults[:_MOST_SHOWN] + more

    def notes(self) -> str:
        counts = self.counts
        told = f"{counts['streams']} streams, begun anew {counts['restarts']} times, taken up again {counts['cuts']} times"
        return f"{told}, {len(self.faults)} faults heard"

    def _read_on(self, number: int) -> None:
        ways = (self._submitted, self._predicted(LINES), self._predicted(SSE))
        turn = number
        while not self._stop.is_set():
            work = order("tell", chunks=self._random.randint(*CHUNKS), seconds=self._pace_s)
            heard = self.live[number] = Heard(work["chunks"])
            entry = ways[turn % len(ways)](work, heard)
            if entry is not None:
                self._conclude(entry, heard)
            turn += 1
        self.live.pop(number, None)

    def _submitted(self, work: dict[str, Any], heard: Heard) -> Entry | None:
        """A job whose events are read; their reader hangs up now and then, and comes back with another encoding."""
        entry = self._stack.driver.submit(work)
        self._follow(entry, heard, (SSE, LINES), is_enough=lambda: self._random.randrange(_HANGS_UP) == 0)
        return entry

    def _predicted(self, accept: str) -> Callable[[dict[str, Any], Heard], Entry | None]:
        """A prediction that is answered with its stream. It is never left: that would cancel its job."""

        def predict(work: dict[str, Any], heard: Heard) -> Entry | None:
            entry = self._stack.driver.ledger.open_entry(work["nonce"], digest(work), "succeeded")
            stream = self._ask(work, accept)
            if stream is None:
                return None
            self._stack.driver.ledger.answered(entry, stream.status, stream.job)
            self._keep(entry, hear(stream, heard))
            self._follow(entry, heard, (accept,))
            return entry

        return predict

    def _ask(self, work: dict[str, Any], accept: str) -> Stream | None:
        """Ask under one key until there is a stream; None if it is time to stop."""
        headers = {"accept": accept, "content-type": "application/json", "idempotency-key": work["nonce"]}
        body = json.dumps(work).encode()
        while True:
            stream = Stream(self._port, "POST", f"/predictions/{MODEL}", headers, body)
            if stream.status == 200:
                return stream
            if self._is_refused(stream, "a prediction") and self._stop.wait(_AGAIN_S):
                return None

    def _follow(
        self, entry: Entry, heard: Heard, encodings: tuple[str, ...], *, is_enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Read the events of the job to their end, over as many connections as that takes."""
        until = time.monotonic() + _WITHIN_S
        while entry.job and not heard.status and time.monotonic() < until:
            is_behind = bool(heard.last_id)
            stream = events_stream(self._port, entry.job, heard, self._random.choice(encodings))
            if stream.status == 200:
                with self._lock:
                    self.counts["cuts"] += is_behind
                self._keep(entry, hear(stream, heard, is_enough=is_enough))
            elif self._is_refused(stream, f"the events of {entry.job}"):
                time.sleep(_AGAIN_S)

    def _is_refused(self, stream: Stream, what: str) -> bool:
        """Always true; an answer that is more than a refusal is noted."""
        answer = stream.refusal()
        stream.close()
        if not answer.expected:
            self._note([f"{what}: {answer.status} {answer.body[:200]!r}"])
        return True

    def _keep(self, entry: Entry, result: Any) -> None:
        if result is not None:
            self.results[entry.job] = result

    def _conclude(self, entry: Entry, heard: Heard) -> None:
        if heard.status and entry.job not in self.results:
            self._keep(entry, self._result(entry.job))
        with self._lock:
            self.counts["streams"] += 1
            self.counts["restarts"] += heard.restarts
        self._note([f"{entry.job}: {fault}" for fault in heard.judge(self.results.get(entry.job))])

    def _result(self, job: str) -> Any:
        until = time.monotonic() + _WITHIN_S
        while time.monotonic() < until:
            answer = self._stack.face.ask("GET", f"/v1/jobs/{job}/result")
            if answer.status == 200:
                return answer.json()
            time.sleep(_AGAIN_S)
        return None

    def _read_again(self, job: str) -> None:
        result = self.results[job]
        heard = Heard(result["chunks"])
        stream = events_stream(self._port, job, heard, SSE)
        if stream.status == 200:
            hear(stream, heard)
        found = heard.judge(result) + ([f"{heard.restarts} restarts"] if heard.restarts else [])
        found += [] if self._result(job) == result else ["the result has changed"]
        self._note([f"{job}, read once more: {fault}" for fault in found])

    def _note(self, faults: list[str]) -> None:
        with self._lock:
            self.faults += faults
