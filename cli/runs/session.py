"""One command on runs: finds the store, drives a run there, and reports its end.

Modules for driving are imported in the methods that need them, so that `--help` and usage errors are fast.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from penstock.cli.completion import completed
from penstock.cli.display import print_faint, print_ids, print_json
from penstock.cli.exits import FAILED, INTERRUPTED, OK
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.broker.store.runs import RunStore
    from penstock.cli.runs.environment import RunEnvironment
    from penstock.cli.serve.process_manager import StopSignals
    from penstock.run import Run, RunSpec
    from penstock.runs.execution import DriveResult, ResumeOptions

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option("--models", help="Serve this source during the run: model.py, model.onnx, name=SOURCE. Repeatable."),
]


def _check_limit(text: str | None) -> str | None:
    from penstock.run import FailureLimit

    try:
        FailureLimit.parse(text)
    except InvalidInput as fault:
        raise typer.BadParameter(f"{fault.message}; {fault.hint}") from fault
    return text


MaxFailedOption = Annotated[
    str | None,
    typer.Option(
        "--max-failed",
        metavar="N|N%",
        callback=_check_limit,
        help="The run fails if more rows fail; 100% is no limit. Default: 10% in runs of more than 100 rows.",
    ),
]


DriversOption = Annotated[
    int, typer.Option("--drivers", min=1, max=64, help="Processes of this command that drive the parts of the run.")
]


class RunSession:
    """The options that name the store and the models of runs, and the actions of commands there."""

    def __init__(
        self,
        models: Sequence[str] | None,
        config: Path | None,
        state_dir: Path | None,
        redis_url: str | None,
        as_json: bool,
        quiet: bool = False,
    ) -> None:
        self._models, self._config, self._state_dir = list(models or []), config, state_dir
        self._redis_url, self._as_json, self._quiet = redis_url, as_json, quiet

    def drive(
        self,
        find_run: Callable[[RunStore], str],
        *,
        model: str = "",
        previous: str = "",
        options: ResumeOptions | None = None,
        drivers: int = 1,
    ) -> int:
        """Drive the run whose id `find_run` returns to its end; returns the exit code.

        `model`: the run's model; None: the model of the run `previous`.
        """
        from penstock.cli.runs.display import show_run_progress
        from penstock.cli.runs.drive import drive_run
        from penstock.cli.runs.remembered import forget, remember
        from penstock.cli.serve.process_manager import StopSignals

        stop = StopSignals()
        stop.install()
        with (
            self._environment(stop, workers=True, model=model, previous=previous) as environment,
            show_run_progress(as_json=self._as_json) as on_progress,
        ):

            def find_checked(runs: RunStore) -> str:
                environment.need_model(model or read_run(runs, previous).spec.model)
                return find_run(runs)

            def on_start(run: Run) -> None:
                if environment.sources:
                    remember(environment.state_dir, run.id, environment.sources)
                self._report_start(run)

            run, result = drive_run(
                environment,
                find_checked,
                stop=stop,
                on_progress=on_progress,
                on_start=on_start,
                options=options,
                drivers=drivers,
            )
            if result.state.value == "completed" and not (result.counts and result.counts.failed):
                forget(environment.state_dir, run.id)
        self._report_end(run, result)
        return exit_code_of(result)

    @contextmanager
    def records(self) -> Iterator[RunStore]:
        """The records of runs, without workers."""
        from penstock.broker.store.runs import RunStore
        from penstock.broker.store.sync import RedisStore
        from penstock.cli.serve.process_manager import StopSignals

        with (
            self._environment(StopSignals(), workers=False) as environment,
            closing(RedisStore(environment.redis_url)) as store,
        ):
            yield RunStore(store)

    def _environment(
        self, stop: StopSignals, *, workers: bool, model: str = "", previous: str = ""
    ) -> AbstractContextManager[RunEnvironment]:
        from penstock.cli.runs.environment import run_environment

        return run_environment(
            self._models,
            config=self._config,
            state_dir=self._state_dir,
            redis_url=self._redis_url,
            stop=stop,
            say=lambda text: print_faint(f"penstock run: {text}"),
            workers=workers,
            model=model,
            previous=previous,
        )

    def _report_start(self, run: Run) -> None:
        if self._as_json:
            print_json({"event": "started", "run": run.id, "model": run.spec.model, "output": run.spec.output})
        else:
            print_faint(f"run {run.id}: {run.spec.model} over {run.spec.input}")

    def _report_end(self, run: Run, result: DriveResult) -> None:
        if self._quiet:
            return print_ids([run.id])
        if self._as_json:
            return print_json({"event": "ended", "run": run.id, **end_fields(run, result)})
        return typer.echo("\n".join(end_lines(run, result)))


def create_run(runs: RunStore, spec: RunSpec) -> str:
    """Create a run that this command drives; returns its id."""
    from penstock.job import new_serial
    from penstock.run import BY_COMMAND

    run_id = new_serial()
    runs.create(run_id, msgspec.structs.replace(spec, metadata={**spec.metadata, BY_COMMAND: str(os.getpid())}))
    return run_id


def read_run(runs: RunStore, run_id: str) -> Run:
    """Raises `NotFound`."""
    from penstock.runs.ownership import no_such_run

    run = runs.read(run_id)
    if run is None:
        raise no_such_run(run_id)
    return run


def exit_code_of(result: DriveResult) -> int:
    """A completed run without a single output counts as failed, because a script that reads its files would fail."""
    if result.state.value == "running":
        return INTERRUPTED
    return OK if result.state.value == "completed" and not _is_all_failed(result) else FAILED


def _is_all_failed(result: DriveResult) -> bool:
    return result.counts is not None and result.counts.failed > 0 and not result.counts.done


def end_fields(run: Run, result: DriveResult) -> dict[str, Any]:
    """The end of a drive, for programs."""
    counts = result.counts
    error = {"code": result.error_code, "message": result.error_message} if result.error_code else None
    if error and (result.hint or result.error_code == "too_many_failed"):
        error["hint"] = next_step(run, result)
    return {
        "state": "interrupted" if result.state.value == "running" else result.state.value,
        "done": counts.done if counts else 0,
        "failed": counts.failed if counts else 0,
        "rows_per_s": round(result.rows_per_s or 0.0, 1),
        "error": error,
        "files": result.details or {},
    }


def end_lines(run: Run, result: DriveResult) -> list[str]:
    """The end of a drive, for people, with the next step unless the run is completed."""
    counts, state = result.counts, result.state.value
    rows = f"{counts.done:,} rows done, {counts.failed:,} failed" if counts else ""
    rate = f", {result.rows_per_s:,.0f} rows/s" if result.rows_per_s else ""
    word = "interrupted" if state == "running" else state
    lines = [f"run {run.id} {word}: {rows}{rate}" if rows else f"run {run.id} {word}"]
    if state == "completed":
        files = {name: file for name, file in (result.details or {}).items() if isinstance(file, dict)}
        lines += [f"  {name:<8} {file['path']}" for name, file in files.items()]
        return [*lines, "  no row has an output; the errors file says why"] if _is_all_failed(result) else lines
    lines += [f"  {result.error_code}: {result.error_message}"] if result.error_code else []
    return [*lines, f"  next: {next_step(run, result)}"]


def next_step(run: Run, result: DriveResult) -> str:
    """The next step for a run that is not completed."""
    if result.error_code == "too_many_failed":
        step = f"correct the input or the model; or accept the failed rows: penstock run resume {run.id} --max-failed 100%"
    elif result.error_code == "disk_full":
        step = f"free some space, then: penstock run resume {run.id}"
    else:
        # An error with a hint would occur again if the run were resumed unchanged.
        step = (result.hint or "penstock run resume RUN").replace("resume RUN", f"resume {run.id}")
    return completed(step)
