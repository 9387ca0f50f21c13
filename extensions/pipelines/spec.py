"""What a pipeline is: stages, each a model, and what each of them and the result are made of. Pure."""

# D100: docs/design/pipelines.md

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from penstock.errors import ConfigError
from penstock.job import JobId
from penstock.model_spec import ModelSpec, VersionInfo

# Of the extension.
NAME = "pipelines"
# Stands for the input of the pipeline where a stage or the result names where its data comes from.
INPUT = "input"
MOST_STAGES = 64
MOST_AT_ONCE = 1_024
STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
# The parts of a serial: the characters of the moment, and those that distinguish jobs of one moment.
_MOMENT_CHARS, _OWN_CHARS = 10, 16

# One place that data comes from, or one for each field of an object.
Wanted = str | dict[str, str]


class ValuePath(NamedTuple):
    """Where a value comes from: the `stage` (or `INPUT`), and the path inside its output."""

    stage: str
    path: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> ValuePath:
        stage, *path = text.split(".")
        return cls(stage, tuple(path))

    def __str__(self) -> str:
        return ".".join((self.stage, *self.path))


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A model, and when it runs: once the stages in `after`, and those that `input` names, have succeeded.

    `version` empty: the model's default version at the moment at which the stage is submitted. `input` is `stage`,
    `stage.field` or an object of such texts by field, where `input` stands for the pipeline's own input. Empty: the pipeline's
    input for a stage after none, the output of the one stage before it, or an object with the output of each by its name.
    `form`: send an object as a form, one field per member, also where all members are JSON; `as_bytes`: as a form whose fields
    are bytes of no type, as functions of TorchServe's workflows take them.
    """

    name: str
    model: str
    version: str = ""
    after: tuple[str, ...] = ()
    input: Wanted = ""
    form: bool = False
    as_bytes: bool = False


_stages = msgspec.json.Decoder(tuple[PipelineStage, ...])


def announced(stages: Sequence[PipelineStage]) -> tuple[dict[str, Any], ...]:
    """The stages as a worker announces them, and as a gateway reads them back."""
    return msgspec.json.decode(msgspec.json.encode(stages), type=tuple[dict[str, Any], ...])


def announced_stages(info: VersionInfo | None) -> tuple[PipelineStage, ...]:
    """The stages of a pipeline that a worker drives; none of another model."""
    return _stages.decode(msgspec.json.encode(info.stages)) if info is not None and info.stages else ()


def pipeline_of(spec: ModelSpec) -> PipelineSpec | None:
    """None for a model that is not a pipeline."""
    return spec.driven_how if spec.driven_by == NAME else None


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """`output`: what the result is made of, as a stage's `input` says it. Empty: the output of the last stage, or of each stage
    that no other follows, by its name. One executor works on at most `at_once` jobs of the pipeline.
    """

    stages: tuple[PipelineStage, ...]
    output: Wanted = ""
    at_once: int = 256

    def stage(self, name: str) -> PipelineStage:
        return next(stage for stage in self.stages if stage.name == name)

    def parents(self, stage: PipelineStage) -> tuple[str, ...]:
        """The stages that must have succeeded before this one, each once, in the order in which they are named."""
        named = (source.stage for source in value_paths(stage.input))
        return tuple(dict.fromkeys(name for name in (*stage.after, *named) if name != INPUT))

    def leaves(self) -> tuple[str, ...]:
        """The stages that no other follows."""
        followed = {parent for stage in self.stages for parent in self.parents(stage)}
        return tuple(stage.name for stage in self.stages if stage.name not in followed)

    def roots(self) -> tuple[PipelineStage, ...]:
        """The stages that get the whole input of the pipeline as it is."""
        return tuple(stage for stage in self.stages if self.wanted(stage) == INPUT)

    def in_order(self) -> Iterator[PipelineStage]:
        """Each stage after all those that it follows."""
        left = {stage.name: stage for stage in self.stages}
        while free := [stage for stage in left.values() if not set(self.parents(stage)) & left.keys()]:
            for stage in free:
                yield left.pop(stage.name)

    def wanted(self, stage: PipelineStage) -> Wanted:
        """What the input of a stage is made of."""
        return stage.input or _by_name(self.parents(stage) or (INPUT,))

    def result(self) -> Wanted:
        """What the result of the pipeline is made of."""
        return self.output or _by_name(self.leaves())


def _by_name(names: tuple[str, ...]) -> Wanted:
    return names[0] if len(names) == 1 else {name: name for name in names}


def value_paths(wanted: Wanted) -> list[ValuePath]:
    texts = wanted.values() if isinstance(wanted, Mapping) else [wanted] if wanted else []
    return [ValuePath.parse(text) for text in texts]


def stage_job(job: JobId, stage: PipelineStage) -> JobId:
    """The job that runs a stage of this pipeline's job: the same one at every submit.

    Its id follows from the pipeline's job, so no record links the two. The moment in its serial is that of the pipeline's job.
    """
    number = int.from_bytes(blake2b(f"{job}\0{stage.name}".encode(), digest_size=_OWN_CHARS * 5 // 8).digest(), "big")
    own = "".join(_DIGITS[number >> shift & 31] for shift in range(5 * (_OWN_CHARS - 1), -1, -5))
    return JobId(job.serial[:_MOMENT_CHARS] + own, stage.model)


# What is wrong with a pipeline.


def checked(name: str, spec: PipelineSpec) -> PipelineSpec:
    """The pipeline itself. Raises `ConfigError` with everything that is wrong with it."""
    wrong = list(faults(spec))
    if wrong:
        raise ConfigError(f"the pipeline {name!r} cannot be used:", faults=wrong)
    return spec


def faults(spec: PipelineSpec) -> Iterator[str]:
    names = [stage.name for stage in spec.stages]
    if not 1 <= len(names) <= MOST_STAGES:
        yield f"a pipeline has 1 to {MOST_STAGES} stages, and this one has {len(names)}"
    for stage in spec.stages:
        yield from _faults_of(stage, names)
    yield from _unknown("output", spec.output, names)
    if len(set(names)) == len(names) and (circle := _circle(spec)):
        yield f"stages {', '.join(circle)} wait for each other; a stage may only follow stages that do not follow it"


def _faults_of(stage: PipelineStage, names: list[str]) -> Iterator[str]:
    where = f"stage {stage.name!r}"
    if not STAGE_NAME.fullmatch(stage.name) or stage.name == INPUT:
        yield f"{where}: a name has letters, digits, '_' and '-', at most 64, and is not {INPUT!r}, the pipeline's own input"
    if names.count(stage.name) > 1:
        yield f"{where}: this name stands {names.count(stage.name)} times; give each stage its own"
    for parent in stage.after:
        if parent not in names:
            yield f"{where}: after names {parent!r}, and the stages are {', '.join(names)}"
    yield from _unknown(f"{where}: input", stage.input, names)


def _unknown(where: str, wanted: Wanted, names: list[str]) -> Iterator[str]:
    for source in value_paths(wanted):
        if source.stage not in (*names, INPUT):
            yield f"{where} names {source.stage!r}, which is neither {INPUT!r} nor one of the stages {', '.join(names)}"
        if "" in source.path:
            yield f"{where}: {str(source)!r} has an empty part; write stage.field"


def _circle(spec: PipelineSpec) -> list[str]:
    """The stages that can never begin because each follows another of them; empty if there are none."""
    left = {stage.name: set(spec.parents(stage)) for stage in spec.stages}
    while free := [name for name, parents in left.items() if not parents & left.keys()]:
        for name in free:
            del left[name]
    return list(left)


def circle_of(pipelines: Mapping[str, Iterable[str]]) -> list[str]:
    """The pipelines that are a stage of themselves, maybe by way of others. `pipelines`: the models of each one's stages."""
    left = {name: set(models) & pipelines.keys() for name, models in pipelines.items()}
    while free := [name for name, inner in left.items() if not inner & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)
