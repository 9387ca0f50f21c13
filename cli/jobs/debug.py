"""`penstock debug`: runs a model's stages on given inputs in this process, where a debugger, prints and tracebacks work."""

from __future__ import annotations

import json
import os
import pdb
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import exits
from penstock.cli.display import print_faint, print_json
from penstock.cli.options import ConfigOption, JsonOption
from penstock.errors import HandlerContractError, PenstockError
from penstock.words import milliseconds, plural

if TYPE_CHECKING:
    from penstock.handlers.contract import Failure
    from penstock.handlers.loaded import Loaded, Stage
    from penstock.model_spec import ModelSpec

app = typer.Typer(add_completion=False)

Outcomes = dict[int, Any]


@app.command()
def debug(
    model: Annotated[str, typer.Argument(help="A file of code or of a model, a module:Name, or a model of penstock.toml.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="JSON, or @FILE for a file's content. Several make one batch. Default: the sample."),
    ] = None,
    form: Annotated[
        list[str] | None, typer.Option("--form", "-F", help="NAME=TEXT or NAME=@FILE: a part of a form, instead of --input.")
    ] = None,
    version: Annotated[str | None, typer.Option("--version", help="The model's version. Default: its default version.")] = None,
    content_type: Annotated[str | None, typer.Option(help="Media type of the inputs.")] = None,
    task: Annotated[str | None, typer.Option(help="A built-in task around a model file.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda:N. Default: as the settings say.")] = None,
    open_pdb: Annotated[bool, typer.Option("--pdb", help="Open the debugger where the model's code raised.")] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a model's code on one batch in this process, without a store, a gateway or a worker.

    penstock debug model.py -i '{"x": 4}'     penstock debug detect -i @street.jpg --pdb

    penstock debug detect -F image=@street.jpg -F threshold=0.4

    The model gets its settings, environment variables and secrets as in a worker. breakpoint() works.
    """
    if form and (inputs or content_type):
        raise typer.BadParameter("-F makes a form of its own: leave out --input and --content-type")
    spec = _spec(model, config, task, version)
    with _tracebacks(open_pdb=open_pdb):
        loaded = _load(spec, device or _first_of(spec.device))
    items = [_form_item(loaded, form)] if form else _items(loaded, inputs or [], content_type)
    errors = _keep_errors(spec.name)
    with _tracebacks(open_pdb=open_pdb):
        outcomes = run_stages(loaded, items)
    failed = _show(outcomes, loaded.output_media, as_json=as_json)
    if open_pdb and errors:
        pdb.post_mortem(errors[0].__traceback__)
    raise typer.Exit(exits.FAILED if failed else exits.OK)


def _keep_errors(model: str) -> list[Exception]:
    """Keep the errors of items that fail alone, as in a function of one item: nothing else raises them here."""
    from penstock.handlers.contract import tracebacks

    tracebacks.are_kept, tracebacks.model, tracebacks.errors = True, model, []
    return tracebacks.errors


@contextmanager
def _tracebacks(*, open_pdb: bool) -> Iterator[None]:
    """Show the error of the model's code with its full traceback. Our own errors without a cause need none."""
    try:
        yield
    except Exception as error:
        if isinstance(error, PenstockError) and error.__cause__ is None:
            raise
        traceback.print_exception(error)
        if open_pdb:
            pdb.post_mortem((error.__cause__ or error).__traceback__)
        raise typer.Exit(exits.FAILED) from None


def _spec(model: str, config: Path | None, task: str | None, version: str | None) -> ModelSpec:
    from penstock.cli.serve.setup import declared_model
    from penstock.settings.remote_sources import is_remote
    from penstock.settings.source_kinds import kind_of

    settings, name = declared_model(model, config, task)
    wanted = version or settings.models[name].chosen_version
    specs = {spec.version: spec for spec in settings.specs() if spec.name == name}
    if wanted not in specs:
        raise typer.BadParameter(f"model {name} has no version {wanted!r}; its versions: {', '.join(specs)}")
    spec = specs[wanted]
    if is_remote(spec.source) or kind_of(spec.source) is not None:
        from penstock.cli.serve.fetching import located, opened

        return opened(located(spec, settings), settings)
    return spec


def _first_of(device: str) -> str:
    """The device of this process. It is one slot, so it takes the first GPU where a worker would use several."""
    return device if device == "cpu" or ":" in device else "cuda:0"


def _load(spec: ModelSpec, device: str) -> Loaded:
    from penstock.handlers.load import load
    from penstock.workers.slot.child.environment import read_variables

    inherited = dict(os.environ)
    for table, variables in (("env", spec.env), ("secrets", spec.secrets)):
        os.environ.update(read_variables(spec.name, table, variables, inherited))
    # The interpreter has already read this variable, which may name an archive's packages.
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder not in sys.path]
    began = time.perf_counter()
    loaded = load(
        spec.source,
        spec.name,
        version=spec.version,
        device=device,
        threads=spec.threads or os.cpu_count() or 1,
        options=spec.options,
        task=spec.task,
        runtime=spec.runtime,
        max_batch_size=spec.policy.max_batch_size,
        requirements=spec.requirements,
        loader=spec.loader,
        modules=spec.modules,
    )
    print_faint(f"{spec.name} {spec.version} on {device}: loaded in {milliseconds((time.perf_counter() - began) * 1e3)}")
    return loaded


def _form_item(loaded: Loaded, given: Sequence[str]) -> Any:
    """The form as an item, read as the gateway and a worker read it. Raises `InvalidInput` for an unknown part."""
    from penstock.cli.jobs.call import form_part
    from penstock.inputs.form import FormPart, encode_form
    from penstock.job import FORM_MEDIA

    sent = [form_part(one) for one in given]
    parts = [FormPart(name, part[1], part[2] if len(part) == 3 else "", part[0]) for name, part in sent]
    return loaded.as_given(loaded.codec.decode(FORM_MEDIA, encode_form(parts)))


def _items(loaded: Loaded, given: Sequence[str], content_type: str | None) -> list[Any]:
    """One item per input, as the first stage receives it. Raises `InvalidInput` for an input that does not fit."""
    from penstock.cli.jobs.call import read_input
    from penstock.client.protocol import body_of

    if not given and loaded.handler.sample is None:
        raise typer.BadParameter("give an input, as in -i '{\"x\": 4}': this model has no sample")
    bodies = [body_of(*read_input(text, content_type)) for text in given]
    inputs = [loaded.codec.decode(body.content_type, body.content) for body in bodies] or [loaded.handler.sample]
    return list(map(loaded.as_given, inputs))


def run_stages(loaded: Loaded, items: list[Any], *, say: Callable[[str], None] = print_faint) -> Outcomes:
    """The output or `Failure` of each item, by index. Unlike in a worker, a stage's exceptions are raised."""
    from penstock.handlers.contract import Failure

    live: Outcomes = dict(enumerate(items))
    failed: Outcomes = {}
    stages = {"preprocess": loaded.preprocess, "inference": loaded.inference, "postprocess": loaded.postprocess}
    for name, stage in stages.items():
        if stage is None or not live:
            continue
        began = time.perf_counter()
        outputs = _run_stage(loaded, stage, name, list(live.values()))
        say(f"{name}: {plural(len(live), 'item')} in {milliseconds((time.perf_counter() - began) * 1e3)}")
        after = dict(zip(live, outputs, strict=True))
        failed |= {place: value for place, value in after.items() if isinstance(value, Failure)}
        live = {place: value for place, value in after.items() if not isinstance(value, Failure)}
    return dict(sorted({**live, **failed}.items()))


def _run_stage(loaded: Loaded, stage: Stage, name: str, values: list[Any]) -> list[Any]:
    """The stage's outputs. During `inference` the handler's context has the items, which belong to no job."""
    from penstock.handlers.contract import OfNoJob

    running = loaded.context.running
    if name == "inference":
        running.told, running.places = OfNoJob(values), range(len(values))
    outputs = _checked(stage, name, values)
    running.told, running.places = None, ()
    return outputs


def _checked(stage: Stage, name: str, values: list[Any]) -> list[Any]:
    outputs = stage(values)
    if not isinstance(outputs, list):
        raise HandlerContractError(f"{name} returned {type(outputs).__name__}; a stage returns a list with one place per item")
    if len(outputs) != len(values):
        raise HandlerContractError(f"{name} got {len(values)} items and returned {len(outputs)}; each item needs its place")
    return outputs


def _show(outcomes: Outcomes, media: str, *, as_json: bool) -> int:
    """Prints each outcome; returns how many failed."""
    from penstock.handlers.contract import Failure

    failed = 0
    for value in outcomes.values():
        if isinstance(value, Failure):
            failed += 1
            _show_failure(value, as_json=as_json)
        else:
            _show_output(value, media, as_json=as_json)
    return failed


def _show_output(value: Any, wanted: str, *, as_json: bool) -> None:
    from penstock.cli.jobs.outputs import readable
    from penstock.handlers.media import JSON, encode

    media, data = encode(value, media=wanted)
    if as_json:
        print_json({"content_type": media, "output": json.loads(data) if media == JSON else f"{len(data)} bytes"})
    else:
        sys.stdout.write((data.decode() if media == JSON else readable(data)) + "\n")


def _show_failure(failure: Failure, *, as_json: bool) -> None:
    if as_json:
        print_json({"error": {"code": failure.code, "message": failure.message, "retryable": failure.retryable}})
    else:
        typer.echo(f"{failure.traceback}{failure.code}: {failure.message}", err=True)
