"""`penstock run MODEL INPUT -o OUTPUT`, and `penstock run list|show|resume|cancel|retry-failed`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from typer.core import TyperGroup

from penstock.cli.connect import JsonOption
from penstock.cli.display import age, print_faint, print_fields, print_json, print_table
from penstock.cli.exits import FAILED, INTERRUPTED, OK
from penstock.cli.options import ConfigOption, RedisOption, StateDirOption
from penstock.errors import BadRequest, NotFound

if TYPE_CHECKING:
    from penstock.broker.run_contract import Runs
    from penstock.broker.store.runs import RunStore
    from penstock.run import Run, RunSpec
    from penstock.runs.execution import DriveResult, ResumeOptions
    from penstock.runs.lease import OwnedRun

START = "start"
_STATES_OK = {"completed": OK, "running": INTERRUPTED}


class RunGroup(TyperGroup):
    """`penstock run MODEL ...` is `penstock run start MODEL ...`; a model called like a command needs the long form."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = [START, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=RunGroup,
    add_completion=False,
    no_args_is_help=True,
    help="Run a model over the rows of files: penstock run MODEL INPUT -o OUTPUT. Resumable, in the input's order.",
)

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--models", help="Serve this source for the time of the run: model.py, model.onnx, name=SOURCE. Repeatable."),
]
MaxFailedOption = Annotated[int | None, typer.Option("--max-failed", min=0, help="Stop when more rows than this fail.")]


@app.command(START)
def start(
    model: Annotated[str, typer.Argument(help="The model's name.")],
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A file, folder, glob or fsspec URL.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Where the output goes: .jsonl or .parquet, a path or URL.")],
    column: Annotated[
        list[str] | None, typer.Option("--column", help="FIELD=COLUMN, or COLUMN alone for its bare value. Repeatable.")
    ] = None,
    carry: Annotated[list[str] | None, typer.Option("--carry", help="A column of the input to repeat in the output.")] = None,
    version: Annotated[str, typer.Option(help="The model's version. Default: the one in force now.")] = "",
    input_format: Annotated[
        str, typer.Option("--format", help="jsonl, csv, tsv, parquet, text, files. Default: by name.")
    ] = "",
    output_format: Annotated[str, typer.Option("--output-format", help="jsonl or parquet. Default: by name.")] = "",
    errors: Annotated[str, typer.Option(help="Where failed rows go. Default: OUTPUT.errors.jsonl.")] = "",
    max_failed: MaxFailedOption = None,
    shard_rows: Annotated[int, typer.Option(min=0, help="Rows per shard. Default: learned from their run time.")] = 0,
    window_rows: Annotated[int, typer.Option(min=1, help="At most so many rows under way.")] = 10_000,
    deadline_s: Annotated[float, typer.Option("--deadline", min=0, help="Seconds; what is not done then is given up.")] = 0.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an output that exists, once the new one is whole.")
    ] = False,
    models: ModelsOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a model over every row of INPUT. Ctrl-C leaves the run as it is; `penstock run resume` goes on.

    Uses the store that is named or the `penstock up` of this folder; else it starts a store and workers for itself.
    """
    from penstock.run import RunSpec

    spec = RunSpec(
        model=model,
        input=_absolute(source),
        output=_absolute(output),
        version=version,
        input_format=input_format,
        output_format=output_format,
        columns=columns_of(column or []),
        carry=tuple(carry or ()),
        errors=_absolute(errors) if errors else "",
        max_failed=max_failed,
        shard_rows=shard_rows,
        window_rows=window_rows,
        deadline_s=deadline_s,
        overwrite=overwrite,
    )
    place = _Where(models, config, state_dir, redis_url, as_json)
    raise typer.Exit(place.drive(lambda runs: created(runs, spec), model=model))


@app.command()
def resume(
    run_id: RunArgument,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Go on although the input or the model's version is another now.")
    ] = False,
    max_failed: MaxFailedOption = None,
    models: ModelsOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Go on with a run that was interrupted, cancelled or stopped: no row is missing or there twice."""
    from penstock.runs.execution import ResumeOptions

    place = _Where(models, config, state_dir, redis_url, as_json)
    allowed = ResumeOptions(changes=accept_changes, max_failed=max_failed)
    raise typer.Exit(place.drive(lambda runs: resumable(runs, run_id), former=run_id, allowed=allowed))


@app.command("retry-failed")
def retry_failed(
    run_id: RunArgument,
    max_failed: MaxFailedOption = None,
    models: ModelsOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the failed rows of a completed run again, and publish its output anew with what came of them."""
    from penstock.runs.execution import ResumeOptions
    from penstock.runs.retry import retry_spec

    place = _Where(models, config, state_dir, redis_url, as_json)
    allowed = ResumeOptions(max_failed=max_failed)
    raise typer.Exit(place.drive(lambda runs: created(runs, retry_spec(_found(runs, run_id))), former=run_id, allowed=allowed))


@app.command("list")
def list_runs(
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 20,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest runs. `--json` prints one per line."""
    from penstock.cli.runs.display import record_of

    with _Where(None, config, state_dir, redis_url, as_json).records() as runs:
        found = runs.runs(limit=limit)
    if as_json:
        for run in found:
            print_json(record_of(run))
    elif found:
        print_table(("RUN", "STATE", "MODEL", "ROWS", "FAILED", "AGE", "OUTPUT"), [_row(run) for run in found])
    else:
        typer.echo("no runs", err=True)


@app.command()
def show(
    run_id: RunArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """One run: what was asked, how far it is, why it ended."""
    from penstock.cli.runs.display import fields_of, record_of

    with _Where(None, config, state_dir, redis_url, as_json).records() as runs:
        run = _found(runs, run_id)
    return print_json(record_of(run)) if as_json else print_fields(fields_of(run))


@app.command()
def cancel(
    run_id: RunArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a run. What it has written stays, and `resume` goes on with it."""
    from penstock.runs.ownership import cancelled

    with _Where(None, config, state_dir, redis_url, as_json).records() as runs:
        word = cancelled(runs, run_id)
    return print_json({"run": run_id, "cancel": word}) if as_json else typer.echo(f"run {run_id}: {word}")


class _Where:
    """The options that say where a run is looked for and driven."""

    def __init__(
        self, models: Sequence[str] | None, config: Path | None, state_dir: Path | None, redis_url: str | None, as_json: bool
    ) -> None:
        self._models, self._config, self._state_dir = list(models or []), config, state_dir
        self._redis_url, self._as_json = redis_url, as_json

    def drive(
        self, made: Callable[[Runs], str], *, model: str = "", former: str = "", allowed: ResumeOptions | None = None
    ) -> int:
        """Drive the run that `made` names; the exit code. It is of `model`, or of the model of the run `former`."""
        from penstock.cli.runs.display import shown_run
        from penstock.cli.runs.drive import driven
        from penstock.cli.serve.supervisor import StopSignals

        stop = StopSignals()
        stop.install()
        with self._standing(stop, workers=True, model=model) as ground, shown_run(as_json=self._as_json) as shown:

            def checked(runs: Runs) -> str:
                ground.need_model(model or _found(runs, former).spec.model)
                return made(runs)

            held, left = driven(ground, checked, stop=stop, shown=shown, said=self._begun, allowed=allowed)
        self._told(held, left)
        return _STATES_OK.get(left.state.value, FAILED)

    @contextmanager
    def records(self) -> Iterator[RunStore]:
        """The runs' records, for a look."""
        from penstock.broker.store.runs import RunStore
        from penstock.broker.store.sync import RedisStore
        from penstock.cli.serve.supervisor import StopSignals

        with self._standing(StopSignals(), workers=False) as ground, closing(RedisStore(ground.redis_url)) as store:
            yield RunStore(store)

    def _standing(self, stop: Any, *, workers: bool, model: str = "") -> Any:
        from penstock.cli.runs.environment import standing

        return standing(
            self._models,
            config=self._config,
            state_dir=self._state_dir,
            redis_url=self._redis_url,
            stop=stop,
            say=lambda text: print_faint(f"penstock run: {text}"),
            workers=workers,
            model=model,
        )

    def _begun(self, held: OwnedRun) -> None:
        run = held.run
        if self._as_json:
            print_json({"event": "started", "run": run.id, "model": run.spec.model, "output": run.spec.output})
        else:
            print_faint(f"run {run.id}: {run.spec.model} over {run.spec.input}")

    def _told(self, held: OwnedRun, left: DriveResult) -> None:
        if self._as_json:
            return print_json({"event": "ended", "run": held.run.id, **told_of(left)})
        return typer.echo("\n".join(ending_lines(held.run, left)))


def created(runs: Runs, spec: RunSpec) -> str:
    """The id of a new run that a command drives."""
    from penstock.job_id import new_serial
    from penstock.runs.ownership import BY_COMMAND

    run_id = new_serial()
    runs.create(run_id, msgspec.structs.replace(spec, metadata={**spec.metadata, BY_COMMAND: str(os.getpid())}))
    return run_id


def resumable(runs: Runs, run_id: str) -> str:
    """The id, once the run can be taken; one that ended early is opened again."""
    from penstock.runs.ownership import reopened

    if _found(runs, run_id).state.final:
        reopened(runs, run_id)
    return run_id


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """FIELD=COLUMN pairs; a bare COLUMN is the whole input."""
    pairs = [text.split("=", 1) if "=" in text else ["", text] for text in given]
    columns = dict(pairs)
    if len(columns) != len(pairs) or not all(columns.values()) or ("" in columns and len(columns) > 1):
        raise BadRequest(f"--column {' --column '.join(given)} does not say which column each field takes")
    return columns


def told_of(left: DriveResult) -> dict[str, Any]:
    counts = left.counts
    error = {"code": left.error_code, "message": left.error_message} if left.error_code else None
    if error and left.hint:
        error["hint"] = left.hint
    return {
        "state": "interrupted" if left.state.value == "running" else left.state.value,
        "done": counts.done if counts else 0,
        "failed": counts.failed if counts else 0,
        "rows_per_s": round(left.rows_per_s or 0.0, 1),
        "error": error,
        "files": left.details or {},
    }


def ending_lines(run: Run, left: DriveResult) -> list[str]:
    counts, state = left.counts, left.state.value
    rows = f"{counts.done:,} rows done, {counts.failed:,} failed" if counts else ""
    rate = f", {left.rows_per_s:,.0f} rows/s" if left.rows_per_s else ""
    word = "interrupted" if state == "running" else state
    lines = [f"run {run.id} {word}: {rows}{rate}" if rows else f"run {run.id} {word}"]
    if state == "completed":
        lines += [f"  {name:<8} {told['path']}" for name, told in (left.details or {}).items() if isinstance(told, dict)]
        return lines
    lines += [f"  {left.error_code}: {left.error_message}"] if left.error_code else []
    # Where the error says what to do, a resume as it is would end with the same error.
    return [*lines, f"  next: {left.hint or f'penstock run resume {run.id}'}"]


def _absolute(name: str) -> str:
    """Paths as they are from anywhere: a run is resumed from another folder too."""
    return name if "://" in name else str(Path(name).absolute())


def _found(runs: Runs, run_id: str) -> Run:
    run = runs.read(run_id)
    if run is None:
        raise NotFound(f"there is no run {run_id!r}", hint="`penstock run list` shows them")
    return run


def _row(run: Run) -> tuple[str, ...]:
    from datetime import UTC, datetime

    from penstock.cli.runs.display import state_word

    done, failed, total = run.counts.done, run.counts.failed, run.counts.total
    rows = f"{done + failed:,}" + (f" of {total:,}" if total else "")
    made = datetime.fromtimestamp(run.created_at, UTC)
    return run.id, state_word(run), run.spec.model, rows, f"{failed:,}", age(made), run.spec.output
