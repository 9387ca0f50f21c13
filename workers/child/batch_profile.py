"""One batch under a profiler, in the child: torch's for torch, ONNX Runtime's own for its sessions, else Python's.

No fault of a profiler may cost the batch: it is noted in `batch.json`, and the batch runs without a recording.
"""

from __future__ import annotations

import cProfile
import io
import pstats
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from penstock.handlers.loaded import Loaded
from penstock.handlers.runtimes.contract import Runtime

FACTS, TRACE, OPERATORS, FUNCTIONS = "batch.json", "trace.json", "operators.txt", "profile.txt"
_TOP = 40
T = TypeVar("T")


class Facts(msgspec.Struct):
    """About a recorded batch: the profiler's `kind`, how long copies between host and device took, and what went wrong."""

    kind: str
    copy_s: float | None = None
    note: str = ""


class ProfileRecorder(Protocol):
    """`start` and `stop` run in the thread that runs the model. `save` writes the files and returns the seconds of copying."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def save(self) -> float | None: ...


class BatchProfile:
    """Call `start` before the batch's clock runs, `stop` when it has run, and `save` after its clock has stopped."""

    def __init__(self, loaded: Loaded, folder: Path) -> None:
        self._folder = folder
        self._loaded = loaded
        self._facts = Facts("")
        self._recorder: ProfileRecorder
        self._is_recording = False

    def start(self) -> None:
        self._is_recording = self._try(self._start) is not None

    def _start(self) -> None:
        self._facts.kind, self._recorder = choose_recorder(self._loaded, self._folder)
        self._recorder.start()

    def run(self, work: Callable[[], T]) -> T:
        """Run the batch, and stop."""
        try:
            return work()
        finally:
            self.stop()

    def stop(self) -> None:
        if self._is_recording:
            self._is_recording = self._try(self._recorder.stop) is not None

    def save(self) -> None:
        if self._is_recording:
            self._try(self._save_recorded)
        self._try(lambda: (self._folder / FACTS).write_bytes(msgspec.json.encode(self._facts)))

    def _save_recorded(self) -> None:
        self._facts.copy_s = self._recorder.save()

    def _try(self, step: Callable[[], object]) -> bool | None:
        """None if the step failed; the reason is then in the facts, and in the worker's log."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - profilers are foreign code, and the batch must not depend on them
            self._facts.note = f"{type(error).__name__}: {error}"[:500]
            sys.stderr.write(f"the profiler ({self._facts.kind or 'not yet chosen'}) failed: {self._facts.note}\n")
            return None
        return True


def choose_recorder(loaded: Loaded, folder: Path) -> tuple[str, ProfileRecorder]:
    """The runtime's own recorder, else torch's if anything here has loaded torch, else Python's."""
    runtime = getattr(loaded.handler, "runtime", None)
    # A handler's attribute `runtime` may be anything, and so may that object's `profile`: only ours is used.
    own = runtime.profile(folder) if isinstance(runtime, Runtime) else None
    if own is not None:
        return "onnxruntime", own
    if "torch" in sys.modules:
        return "torch", TorchRecorder(folder, cuda=loaded.context.device.startswith("cuda"))
    return "python", PythonRecorder(folder)


class TorchRecorder:
    """A trace for chrome://tracing or Perfetto, and torch's own table of operators."""

    def __init__(self, folder: Path, *, cuda: bool) -> None:
        self._folder = folder
        self._cuda = cuda
        self._profiler: Any = None

    def start(self) -> None:
        # The first profiler of a process takes long to start. An empty recording pays for that, so that the batch does not.
        with self._profile():
            pass
        self._profiler = self._profile()
        self._profiler.__enter__()

    def stop(self) -> None:
        self._profiler.__exit__(None, None, None)

    def save(self) -> float | None:
        averages = self._profiler.key_averages()
        order = "self_device_time_total" if self._cuda else "self_cpu_time_total"
        (self._folder / OPERATORS).write_text(averages.table(sort_by=order, row_limit=_TOP))
        self._profiler.export_chrome_trace(str(self._folder / TRACE))
        copies = [row.self_device_time_total for row in averages if row.key.startswith(("Memcpy HtoD", "Memcpy DtoH"))]
        return sum(copies) / 1e6 if self._cuda else None

    def _profile(self) -> Any:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._cuda else [])]
        return profile(activities=activities, record_shapes=True)


class PythonRecorder:
    """Calls by function, the costliest first. It slows Python code down: its times can be compared but not added up."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._profiler = cProfile.Profile()

    def start(self) -> None:
        self._profiler.enable()

    def stop(self) -> None:
        self._profiler.disable()

    def save(self) -> float | None:
        text = io.StringIO()
        pstats.Stats(self._profiler, stream=text).sort_stats("cumulative").print_stats(_TOP)
        (self._folder / FUNCTIONS).write_text(text.getvalue())
        return None
