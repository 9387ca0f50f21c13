"""How far one job of a pipeline is: which stages are to begin, which are under way, and how it ends. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.extensions.pipelines.spec import PipelineSpec, PipelineStage
from penstock.job import JobState, Payload


@dataclass(frozen=True, slots=True)
class StageEnd:
    """How the job of a stage ended. `output` of one that succeeded; else a code and a sentence."""

    state: JobState
    output: Payload | None = None
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class FailedStage:
    """The stage that ended the pipeline, and how it ended itself."""

    stage: PipelineStage
    end: StageEnd


class PipelineProgress:
    """The progress of one job. A stage begins and ends at most once; repeated reports of it change nothing.

    `outputs`: of the stages that succeeded, by name. `failed`: the first stage that did not succeed. Then no other begins.
    """

    def __init__(self, spec: PipelineSpec) -> None:
        self._spec = spec
        self._waits_for = {stage.name: set(spec.parents(stage)) for stage in spec.stages}
        self._open: dict[str, PipelineStage] = {}
        self._begun: set[str] = set()
        self._is_given_up = False
        self.outputs: dict[str, Payload] = {}
        self.failed: FailedStage | None = None

    def due(self) -> list[PipelineStage]:
        """The stages that are to begin now: all that they follow have succeeded. They count as begun from now on."""
        if self.failed or self._is_given_up:
            return []
        done = self.outputs.keys()
        stages = [stage for stage in self._spec.stages if self._waits_for[stage.name] <= done and stage.name not in self._begun]
        for stage in stages:
            self._begun.add(stage.name)
            self._open[stage.name] = stage
        return stages

    def end(self, stage: PipelineStage, end: StageEnd) -> None:
        """Note the end of a stage that has begun."""
        if self._open.pop(stage.name, None) is None:
            return
        if end.state is JobState.SUCCEEDED and end.output is not None:
            self.outputs[stage.name] = end.output
        elif self.failed is None and not self._is_given_up:
            self.failed = FailedStage(stage, end)

    def give_up(self) -> None:
        """The result is no longer wanted: no further stage begins."""
        self._is_given_up = True

    @property
    def under_way(self) -> list[PipelineStage]:
        """The stages that have begun and not ended. Once the pipeline is over, they must be cancelled."""
        return list(self._open.values())

    @property
    def is_complete(self) -> bool:
        return len(self.outputs) == len(self._spec.stages)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.is_complete or self.failed is not None or self._is_given_up

    @property
    def fraction(self) -> float:
        return len(self.outputs) / len(self._spec.stages)

    @property
    def note(self) -> str:
        """Which stages are under way, for people."""
        return ", ".join(self._open) if self._open else ""


def needless_blobs(outputs: Mapping[str, Payload], result: Payload, given: Payload) -> tuple[str, ...]:
    """The blobs of outputs that no result refers to, once the pipeline has succeeded. A stage that is a pipeline may hand back
    what it was `given`, which a replay needs.
    """
    kept = (result.blob, given.blob)
    return tuple(dict.fromkeys(one.blob for one in outputs.values() if one.blob and one.blob not in kept))
