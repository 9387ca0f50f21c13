"""Pipelines of models with known times, for the tests of their predictions."""

from __future__ import annotations

from dataclasses import replace

from penstock.extensions.pipelines.spec import PipelineSpec, PipelineStage
from penstock.extensions.pipelines.tune.chain import ChainModel, SimulatedStage
from penstock.extensions.pipelines.tune.result import PipelineChoice, PipelineConfiguration, PipelineResult
from penstock.model_spec import BatchPolicy
from penstock.tune.result import (
    BatchTime,
    Choice,
    ConfigurationVerdict,
    EngineSettings,
    Figures,
    Goal,
    Measured,
    Overheads,
    SearchTime,
)
from penstock.tune.simulation.predict import StackModel

ONE = EngineSettings(threads=1)
ROW = PipelineSpec((PipelineStage("a", "first"), PipelineStage("b", "second", after=("a",))))
FORK = PipelineSpec((PipelineStage("a", "first"), PipelineStage("b", "second"), PipelineStage("c", "third", after=("a", "b"))))


def times(item_s: float) -> tuple[BatchTime, ...]:
    return tuple(BatchTime(size, item_s * size) for size in (1, 2, 4, 8))


def stage(item_s: float, *, cores: float = 8.0, batch: int = 1, place: str = "cpu") -> SimulatedStage:
    return SimulatedStage(StackModel(times(item_s), BatchPolicy(batch, 0.0), 1, Overheads()), place, cores, 1.0)


def chain(spec: PipelineSpec, *items_s: float, cores: float = 8.0, hop_s: float = 0.0, request_s: float = 0.0) -> ChainModel:
    stages = {one.name: stage(item_s, cores=cores) for one, item_s in zip(spec.stages, items_s, strict=True)}
    return ChainModel(spec, stages, hop_s, request_s)


def figures(rate: float, tail_ms: float) -> Figures:
    return Figures(rate, rate, tail_ms / 3, tail_ms, tail_ms)


def configuration(size: int, rate: float, verdict: ConfigurationVerdict, *, is_declared: bool = False) -> PipelineConfiguration:
    choice = PipelineChoice({"detector": Choice(ONE, size, 0.0), "pose": Choice(ONE, 1, 0.0)})
    return PipelineConfiguration(
        choice, verdict, "why", figures(rate, 80.0), figures(rate, 90.0), figures(rate, 95.0), is_declared=is_declared
    )


def result(pipeline: str = "drawings") -> PipelineResult:
    """One winner, one that was simulated only, and the settings of today."""
    return PipelineResult(
        pipeline,
        Goal(),
        {"a": "detector", "b": "pose"},
        {"detector": {"batch_size": [1, 2]}, "pose": {"batch_size": [1]}},
        {"detector": (Measured(ONE, 1, times(0.01)),), "pose": (Measured(ONE, 1, times(0.02)),)},
        (
            configuration(2, 12.0, ConfigurationVerdict.WINNER),
            replace(configuration(4, 11.0, ConfigurationVerdict.LOST), confirmed=None, rerun=None),
            configuration(1, 8.0, ConfigurationVerdict.CONFIRMED, is_declared=True),
        ),
        machine={"cpus": 2},
        spent=SearchTime(60.0, 100.0, {"measure": 30.0}, 2, 3),
        notes=("pose: a note",),
        sample="8 given",
    )
