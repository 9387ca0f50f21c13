"""What users ask while something breaks: predictions, polls, readiness; and what an operator watches: the memory in use.

One asker runs beside every fault. It asks a few times a second from a thread per kind of question, so that an answer that hangs
holds up no other question, and judges every answer. At the end it asks until predictions and readiness are right again.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.faults.driver import order
from tests.faults.echo import digest
from tests.faults.face import Answer, HttpFace
from tests.faults.memory import MemoryWatch

_PREDICT_EVERY_S = 0.2
_POLL_EVERY_S = 0.1
_READY_EVERY_S = 0.3
_MEMORY_EVERY_S = 0.5
# A prediction that a frozen worker has claimed is answered with 504 after this time; no model of a fault allows less.
_DEADLINE_S = 2.0
_USABLE_WITHIN_S = 60.0
_JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Question:
    """The input of one prediction, and whether an output is the right one for that input."""

    input: Any
    is_right: Callable[[Any], bool]


def echo_question() -> Question:
    work = order()
    return Question(work, lambda output: bool(output["digest"] == digest(work)))


@dataclass(frozen=True, slots=True)
class Asked:
    """How predictions were answered: `right`, `refused` (503, 429), `late` (504), `broken` (no answer), or a fault's own code.

    `grown_mib`: by how much the process that grew most has grown. `complaints`: what no user should meet.
    """

    answers: Mapping[str, int]
    grown_mib: float
    complaints: tuple[str, ...]

    @property
    def asked(self) -> int:
        return sum(self.answers.values())

    @property
    def right(self) -> int:
        return self.answers.get("right", 0)


class Asker:
    """`poll` reads one job as its owner does. `excused` holds codes that this fault gives to innocent predictions, rightly."""

    def __init__(
        self,
        face: HttpFace,
        model: str,
        *,
        make: Callable[[], Question],
        poll: Callable[[], None],
        memory: MemoryWatch,
        excused: frozenset[str] = frozenset(),
    ) -> None:
        self._face = face
        self._path = f"/predictions/{model}?deadline_s={_DEADLINE_S:g}"
        self._make = make
        self._memory = memory
        self._excused = excused
        self._answers: Counter[str] = Counter()
        self._complaints: list[str] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self._running: list[Future[None]] = []
        self._questions: dict[Callable[[], object], tuple[float, threading.Lock]] = {
            self._predict: (_PREDICT_EVERY_S, threading.Lock()),
            poll: (_POLL_EVERY_S, threading.Lock()),
            self._ask_readiness: (_READY_EVERY_S, threading.Lock()),
            memory.look: (_MEMORY_EVERY_S, threading.Lock()),
        }

    def start(self) -> None:
        for ask, (every_s, lock) in self._questions.items():
            self._running.append(self._pool.submit(self._repeat, ask, every_s, lock))

    def stop(self) -> None:
        """Wait for the answers to the last questions; raise what broke a question."""
        self._stop.set()
        self._pool.shutdown()
        for question in self._running:
            question.result()
        self._running.clear()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Ask nothing while the block runs, with no question left open: for scenarios that count jobs or place a failpoint."""
        with ExitStack() as held:
            for _, lock in self._questions.values():
                held.enter_context(lock)
            yield

    def conclude(self) -> Asked:
        """Ask until the product is usable again, then stop, and return what was answered."""
        self._await_usable()
        self.stop()
        return Asked(dict(self._answers), self._memory.grown_mib(), (*self._complaints[:5], *self._memory.complaints()))

    def _repeat(self, ask: Callable[[], object], every_s: float, lock: threading.Lock) -> None:
        while not self._stop.wait(every_s):
            with lock:
                ask()

    def _predict(self) -> str:
        """Ask for one prediction, count its answer by kind, and return a sentence about an answer that is not right."""
        question = self._make()
        answer = self._face.ask("POST", self._path, json.dumps(question.input).encode(), _JSON)
        kind = _kind(answer, question, self._excused)
        # Questions count from the moment when a gateway listens for the first time.
        self._answers[kind] += bool(self._answers) or kind != "broken"
        told = "" if kind == "right" else f"a prediction was answered {kind}: {answer.status} {answer.body[:200]!r}"
        if kind in ("wrong", "unexpected"):
            self._complaints.append(told)
        return told

    def _ask_readiness(self) -> None:
        told = self._readiness()
        if not told:
            self._memory.settle()
        elif told.startswith("readiness"):
            self._complaints.append(told)

    def _readiness(self) -> str:
        """Return what keeps the gateway from being ready, or nothing; a sentence on `readiness` is about a wrong answer."""
        answer = self._face.ask("GET", "/readyz")
        if answer.status == 200:
            return ""
        expected = answer.status == 0 or (answer.status == 503 and "retry-after" in answer.headers)
        return f"{'not ready' if expected else 'readiness was answered'}: {answer.status} {answer.body[:200]!r}"

    def _await_usable(self) -> None:
        """Users judge a recovery by this: predictions are right again, and the probes say so too."""
        until = time.monotonic() + _USABLE_WITHIN_S
        while (told := self._predict() or self._readiness()) and time.monotonic() < until:
            time.sleep(_PREDICT_EVERY_S)
        if told:
            self._complaints.insert(0, f"{_USABLE_WITHIN_S:g} s after everything ended: {told}")


def _kind(answer: Answer, question: Question, excused: frozenset[str]) -> str:
    if answer.status == 200:
        return "right" if question.is_right(answer.json()) else "wrong"
    if answer.status == 504:
        return "late"
    if answer.expected:
        return "refused" if answer.status else "broken"
    code = answer.json().get("code", "") if answer.body.startswith(b"{") else ""
    return str(code) if code in excused else "unexpected"
