"""How a worker process behaves, and which of the models it serves."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from penstock.settings.keys import Table
from penstock.settings.models import Seconds


class WorkerSettings(Table):
    """Durations are in seconds. `metrics_port` 0: metrics have no port of their own. `model_dir` holds the versions that are
    loaded at run time. Set `pinning` to none for
    workers that share cores, because each worker plans for all cores of the machine. `reload`: reload a model when a file of
    its code changes. `keep_tracebacks`: what holds for models that do not say so themselves; unless set, what `reload` says.
    `models`: which models of these settings a worker process serves, by name or pattern; empty: all. `pod`: the pod of
    Kubernetes that this worker runs in; it then says there whether it is busy (docs/production/kubernetes.md). `memory_bytes`:
    what models on the CPU whose slots follow their work may take together; None: nine tenths of the control group's limit, or
    of the machine. `min_stay_s`: how long one of them stays at least, once it is loaded, while another one waits for its room.
    """

    lease_s: Seconds = 15.0
    beat_s: Seconds = 4.0
    grace_s: float = Field(default=30.0, ge=0)
    pinning: Literal["cores", "none"] = "cores"
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    model_dir: Path | None = None
    reload: bool = False
    keep_tracebacks: bool | None = None
    models: tuple[str, ...] = ()
    memory_bytes: int | None = Field(default=None, ge=0)
    min_stay_s: Seconds = 30.0
    pod: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")

    @property
    def sweep_s(self) -> float:
        """How often a worker looks for jobs whose lease or deadline has passed."""
        return self.beat_s / 4

    @property
    def keeps_tracebacks(self) -> bool:
        return self.reload if self.keep_tracebacks is None else self.keep_tracebacks

    @model_validator(mode="after")
    def _two_beats_fit_a_lease(self) -> WorkerSettings:
        if self.beat_s * 2 > self.lease_s:
            raise ValueError(
                f"beat_s ({self.beat_s:g}) may be at most half of lease_s ({self.lease_s:g}): one beat may be lost"
            )
        return self


def fitting(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names that match one of the patterns."""
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def unfit_patterns(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """A fault for each pattern of `worker.models` that matches none of the names."""
    known = ", ".join(names) or "none"
    return [
        f"worker.models: {pattern!r} fits none of the models: {known}" for pattern in patterns if not fitting([pattern], names)
    ]
