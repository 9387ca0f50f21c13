"""`penstock.pipeline`: a pipeline that is declared in code, beside the models of its stages."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import ConfigError
from penstock.extensions.pipelines.spec import PipelineSpec, PipelineStage, Wanted, checked


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """The arguments of `stage`. `model`: an object of code that can be served, or the name of a model declared elsewhere."""

    model: Any
    version: str = ""
    after: tuple[str, ...] = ()
    input: Wanted = ""
    form: bool = False
    as_bytes: bool = False


class DeclaredPipeline:
    """A pipeline and its models as settings have them: `table` is `[pipelines.NAME]`, `models` holds the source of each model
    that is code beside it. Names of `models` that a stage gives as text must be declared where the pipeline is served.
    """

    def __init__(self, name: str, spec: PipelineSpec, table: dict[str, Any], models: dict[str, str]) -> None:
        self.name = name
        self.spec = spec
        self.table = table
        self.models = models


def stage(
    model: Any,
    *,
    version: str = "",
    after: Sequence[str] = (),
    input: str | Mapping[str, str] = "",
    form: bool = False,
    as_bytes: bool = False,
) -> DeclaredStage:
    """A stage of a `pipeline`: what it runs, after which others, and what its input is made of. The words are those of
    settings: docs/reference/pipelines.md. `model` is a function marked with `@penstock.model`, a Handler, or a model's name.
    """
    wanted = input if isinstance(input, str) else dict(input)
    return DeclaredStage(model, version, tuple(after), wanted, form, as_bytes)


def pipeline(
    name: str, stages: Mapping[str, Any], *, output: str | Mapping[str, str] = "", **settings: Any
) -> DeclaredPipeline:
    """Declare a pipeline. `stages` maps the name of each stage to its model, or to a `stage`. By default a stage gets the
    output of the one before it, and the first one the pipeline's input.

    `settings` are those of `[pipelines.NAME]` (`deadline_s`, `at_once`, ...), which are checked when it is served. Raises
    `ConfigError` with everything that is wrong with the stages.
    """
    declared = _in_a_row({each: one if isinstance(one, DeclaredStage) else DeclaredStage(one) for each, one in stages.items()})
    models: dict[str, str] = {}
    made = [_made(each, one, models) for each, one in declared.items()]
    spec = checked(name, PipelineSpec(tuple(made), output if isinstance(output, str) else dict(output)))
    table = {**settings, "stages": [_stage_table(each) for each in made], **({"output": spec.output} if spec.output else {})}
    return DeclaredPipeline(name, spec, table, models)


def _in_a_row(stages: Mapping[str, DeclaredStage]) -> dict[str, DeclaredStage]:
    """The same, where each stage that names neither `after` nor `input` follows the one before it."""
    chained: dict[str, DeclaredStage] = {}
    before = ""
    for name, one in stages.items():
        follows = (before,) if before and not one.after and not one.input else one.after
        chained[name] = DeclaredStage(one.model, one.version, follows, one.input, one.form, one.as_bytes)
        before = name
    return chained


def _made(name: str, declared: DeclaredStage, models: dict[str, str]) -> PipelineStage:
    model = declared.model
    if not isinstance(model, str):
        model, source = _source_of(model, f"stage {name!r}")
        if models.setdefault(model, source) != source:
            raise ConfigError(f"stage {name!r}: two models are called {model!r}: {models[model]} and {source}")
    return PipelineStage(
        name, model, declared.version, declared.after, declared.input, form=declared.form, as_bytes=declared.as_bytes
    )


def _source_of(model: Any, where: str) -> tuple[str, str]:
    """The name of a model that is code, and its source as settings write it."""
    own, module = getattr(model, "__name__", ""), sys.modules.get(getattr(model, "__module__", ""))
    file = getattr(module, "__file__", None)
    if not callable(model) or not file or not own.isidentifier():
        raise ConfigError(
            f"{where}: {model!r} cannot be served",
            hint="name a function marked with @penstock.model, a Handler class of a file, or a model by its name",
        )
    named = getattr(getattr(model, "attributes", None), "name", "")
    return named or own.replace("_", "-").lower(), f"{Path(file).resolve()}:{own}"


def _stage_table(stage: PipelineStage) -> dict[str, Any]:
    """As settings write it, without unset values."""
    told = {"version": stage.version, "after": list(stage.after), "input": stage.input}
    flags = {"form": stage.form, "as_bytes": stage.as_bytes}
    return {"name": stage.name, "model": stage.model, **{key: value for key, value in {**told, **flags}.items() if value}}
