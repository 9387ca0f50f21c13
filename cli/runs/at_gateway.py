"""`penstock run` with a gateway: uploads the input, follows the run that the gateway's runners drive, downloads the output.

Verbs and messages are the same as for runs in a store (`penstock.cli.runs.session`).
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from penstock.cli.completion import completed
from penstock.cli.display import age, print_faint, print_fields, print_ids, print_json, print_table
from penstock.cli.exits import FAILED, INTERRUPTED, OK
from penstock.cli.options import connect
from penstock.cli.runs.display import show_run_progress
from penstock.cli.serve.process_manager import StopSignals
from penstock.client.handles.run_handle import RunHandle
from penstock.client.runs import POLL_S, RunOptions, RunView, is_file_id
from penstock.client.sync import Client
from penstock.errors import BadRequest, Conflict
from penstock.run import RunCounts, format_of
from penstock.runs.progress import RunProgress

_OUTPUTS = ("jsonl", "parquet", "csv", "tsv")
_ERRORS_SUFFIX = ".errors.jsonl"
_WAITS_FOR = {"queued": "waits for a runner", "interrupted": "its runner is gone, and another takes it within 15 s"}


@dataclass(frozen=True, slots=True)
class GatewayRuns:
    """The runs of one gateway. `as_json` and `quiet`: how they are printed."""

    url: str
    api_key: str | None = None
    as_json: bool = False
    quiet: bool = False

    def start(self, model: str, source: str, output: str, errors: str, said: dict[str, Any], *, overwrite: bool) -> int:
        """Run the model over a local file, or an uploaded one by its id; returns the exit code.

        `said`: options of the run, as `RunOptions` has them.
        """
        target, faults = _targets(output, errors)
        if target.exists() and not overwrite:
            raise BadRequest(f"{output} exists already", hint="name another output, or give --overwrite")
        _need_input(source)
        form = said["output_format"] or format_of(output)
        if form not in _OUTPUTS:
            raise BadRequest(
                f"{output} says no format of outputs", hint=f"name it .{', .'.join(_OUTPUTS)}, or give --output-format"
            )
        with self._connected() as client:
            handle = client.run(model, source, options=RunOptions(**said | {"output_format": form}))
            if self.as_json:
                print_json({"event": "started", "run": handle.id, "model": model, "output": output})
            else:
                print_faint(f"run {handle.id}: {model} over {source}, at {self.url}")
            return self._follow(handle, target, faults)

    def resume(self, run_id: str, output: str | None) -> int:
        """Follow a run to its end and download its output; returns the exit code. Runners continue a run by themselves."""
        output, target, faults = _fetched_into(output)
        if target.exists():
            raise BadRequest(f"{output} exists already", hint="name another output")
        with self._connected() as client:
            handle = client.run_handle(run_id)
            if handle.view.final and handle.status != "completed":
                raise Conflict(f"run {run_id} has ended: it is {handle.status}", hint=next_step(handle.view, output))
            return self._follow(handle, target, faults)

    def retry_failed(self, run_id: str, output: str | None) -> int:
        """Run the failed rows of a completed run again, and download the output of all rows over the earlier one."""
        _, target, faults = _fetched_into(output)
        with self._connected() as client:
            handle = client.run_handle(run_id).retry_failed()
            code = self._follow(handle, target, faults)
        if handle.view.status == "completed" and not handle.view.errors:
            # The old errors file lists rows that now have an output.
            faults.unlink(missing_ok=True)
        return code

    def print_list(self, *, limit: int, tag: str | None) -> None:
        with self._connected() as client:
            views = [handle.view for handle in islice(client.runs(tag=tag, limit=min(limit, 100)), limit)]
        if self.quiet:
            return print_ids(view.id for view in views)
        if self.as_json:
            for view in views:
                print_json(dict(view.body))
        elif views:
            print_table(("RUN", "STATE", "MODEL", "ROWS", "FAILED", "AGE", "OUTPUT"), [_row(view) for view in views])
        else:
            typer.echo("no runs", err=True)
        return None

    def show(self, run_id: str) -> None:
        with self._connected() as client:
            view = client.run_handle(run_id).view
        if self.as_json:
            return print_json(dict(view.body))
        print_fields(_fields(view))
        if parts := view.body.get("parts"):
            typer.echo()
            rows = [(str(one["number"]), one["status"], f"{one['done']:,}", f"{one['failed']:,}") for one in parts]
            print_table(("PART", "STATE", "ROWS", "FAILED"), rows)
        return None

    def cancel(self, run_ids: Sequence[str], tag: str | None) -> None:
        with self._connected() as client:
            ids = [handle.id for handle in client.runs(tag=tag) if not handle.view.final] if tag is not None else run_ids
            for run_id in ids:
                try:
                    view = client.run_handle(run_id).cancel()
                except Conflict:
                    if tag is None:
                        raise
                    # The run has ended since it was listed.
                    continue
                word = "cancelled" if view.status == "cancelled" else "cancel requested"
                print_json({"run": run_id, "cancel": word}) if self.as_json else typer.echo(f"run {run_id}: {word}")
        if not ids:
            typer.echo(f"no run of the tag {tag} is open", err=True)

    @contextmanager
    def _connected(self) -> Iterator[Client]:
        with connect(self.url, self.api_key) as client:
            yield client

    def _follow(self, handle: RunHandle, output: Path, errors: Path) -> int:
        """Show the progress of a run until it has ended or a signal comes, then download its files."""
        stop, began_at = StopSignals(), time.monotonic()
        stop.install()
        with show_run_progress(as_json=self.as_json) as on_progress:
            while not handle.refresh().final and not stop.count:
                on_progress(progress_of(handle.view, time.monotonic() - began_at))
                stop.wait(POLL_S)
        if handle.view.status == "completed":
            handle.save(output, errors)
        self._report(handle.view, output, errors)
        return exit_code_of(handle.view)

    def _report(self, view: RunView, output: Path, errors: Path) -> None:
        if self.quiet:
            return print_ids([view.id])
        if self.as_json:
            return print_json({"event": "ended", "run": view.id, **_end_of(view, output, errors)})
        return typer.echo("\n".join(end_lines(view, output, errors)))


def progress_of(view: RunView, elapsed_s: float) -> RunProgress:
    counts = _counts(view)
    share = (counts.done + counts.failed) / counts.total if counts.total else None
    return RunProgress(counts, view.status, view.rows_per_s, view.busy, elapsed_s, _WAITS_FOR.get(view.status, ""), share)


def exit_code_of(view: RunView) -> int:
    if not view.final:
        return INTERRUPTED
    return OK if view.status == "completed" and (view.done or not view.failed) else FAILED


def end_lines(view: RunView, output: Path, errors: Path) -> list[str]:
    """The end or the current state of the run, for people."""
    word = view.status if view.final else "continues at the gateway"
    lines = [f"run {view.id} {word}: {view.done:,} rows done, {view.failed:,} failed, {view.rows_per_s:,.0f} rows/s"]
    lines += [f"  {name:<8} {path}" for name, path in _files(view, output, errors).items()]
    if view.status == "completed":
        return [*lines, "  no row has an output; the errors file says why"] if view.failed and not view.done else lines
    lines += [f"  {view.error.get('code')}: {view.error.get('message')}"] if view.error else []
    return [*lines, f"  next: {next_step(view, str(output))}"]


def next_step(view: RunView, output: str) -> str:
    """The next step for a run that is not completed."""
    if not view.final:
        return completed(f"penstock run resume {view.id} -o {shlex.quote(output)}")
    again = f"penstock run {view.body.get('model')} {view.body.get('input')} -o {shlex.quote(output)}"
    if view.error and view.error.get("code") == "too_many_failed":
        return completed(f"correct the input or the model; or accept the failed rows: {again} --max-failed 100%")
    return completed(f"start it over the uploaded input again: {again}")


def _end_of(view: RunView, output: Path, errors: Path) -> dict[str, Any]:
    return {
        "state": view.status if view.final else "interrupted",
        "done": view.done,
        "failed": view.failed,
        "rows_per_s": round(view.rows_per_s, 1),
        "error": dict(view.error) | {"hint": next_step(view, str(output))} if view.error else None,
        "files": {name: {"path": str(path)} for name, path in _files(view, output, errors).items()},
    }


def _files(view: RunView, output: Path, errors: Path) -> dict[str, Path]:
    targets = {"output": (view.output, output), "errors": (view.errors, errors)}
    return {name: path for name, (link, path) in targets.items() if link and view.status == "completed"}


def _fetched_into(output: str | None) -> tuple[str, Path, Path]:
    """The output's name on the command line, and the paths of output and errors file. Raises `BadRequest`."""
    if output is None:
        raise BadRequest("a gateway does not know where its output goes here", hint="say where: -o OUTPUT")
    return output, *_targets(output, "")


def _targets(output: str, errors: str) -> tuple[Path, Path]:
    """The paths of output and errors file. Raises `BadRequest` for a place that this command cannot write to."""
    if "://" in output or "://" in errors:
        raise BadRequest(
            "the output of a gateway's run is fetched into a local file", hint="name a file, and copy it to its place"
        )
    target = Path(output).absolute()
    if not target.parent.is_dir():
        raise BadRequest(f"there is no folder {target.parent}", hint=f"mkdir -p {target.parent}")
    return target, Path(errors).absolute() if errors else target.with_name(target.name + _ERRORS_SUFFIX)


def _need_input(source: str) -> None:
    """Raises `BadRequest` for an input that is not one local file."""
    if is_file_id(source) or Path(source).is_file():
        return
    what = "is a folder" if Path(source).is_dir() else "is no file here"
    raise BadRequest(
        f"{source} {what}, and a gateway's run has one file as its input",
        hint="name a file of rows; folders, globs and URLs are read by a run in a store: --redis-url instead of --url",
    )


def _counts(view: RunView) -> RunCounts:
    return RunCounts(total=view.rows, done=view.done, failed=view.failed)


def _row(view: RunView) -> tuple[str, ...]:
    rows = f"{view.done + view.failed:,}" + (f" of {view.rows:,}" if view.rows else "")
    created = datetime.fromisoformat(view.body["created_at"])
    return view.id, view.status, str(view.body.get("model")), rows, f"{view.failed:,}", age(created), view.output or "-"


def _fields(view: RunView) -> dict[str, Any]:
    body, error = view.body, view.error
    return {
        "run": view.id,
        "state": view.status,
        "model": f"{body.get('model')} {body.get('version') or ''}".strip(),
        "input": body.get("input"),
        "output": view.output,
        "rows": f"{view.done:,} done, {view.failed:,} failed" + (f", {view.rows:,} in all" if view.rows else ""),
        "rate": f"{view.rows_per_s:,.0f} rows/s" if view.rows_per_s else "",
        "tags": ", ".join(body.get("tags") or ()),
        "busy": "" if view.busy is None else f"{view.busy:.0%} of the device time",
        "created": body.get("created_at"),
        "finished": body.get("finished_at"),
        "error": f"{error.get('code')}: {error.get('message')}" if error else "",
        "errors": view.errors,
    }
