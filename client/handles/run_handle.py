# Generated from client/handles/run_handle_aio.py by `make sync-client`. Change that file, not this one.
"""One run as the client sees it: progress, waiting, and the results in the order of the inputs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.client import display, runs
from penstock.client.problems import RunTimeout
from penstock.client.runs import OnProgress, RunView

if TYPE_CHECKING:
    from penstock.client.sync import Client


class RunHandle:
    """One run. Iteration waits for the end of the run and gives one value per input: the output, or a `RowFailed`.

    `len()` is the number of rows. It is known at once if the inputs were given as an iterable.
    """

    def __init__(self, client: Client, view: RunView, *, rows: int | None = None, output_format: str = "jsonl") -> None:
        self._client = client
        self._rows = rows
        self._format = output_format
        self.view = view

    def __repr__(self) -> str:
        return f"RunHandle({self.id!r}, {self.status!r})"

    def _repr_html_(self) -> str:
        return display.run_table(self.view)

    @property
    def id(self) -> str:
        """The run's id, which never changes."""
        return self.view.id

    @property
    def status(self) -> str:
        """As last seen."""
        return self.view.status

    def __len__(self) -> int:
        rows = self._rows if self._rows is not None else self.view.rows
        if rows is None:
            raise TypeError("the number of rows is not known yet; call refresh() later")
        return rows

    def refresh(self) -> RunView:
        """Ask the gateway for the current state of the run."""
        self.view = runs.run_of(self._client.send(runs.read_call(self.id)))
        return self.view

    def wait(self, timeout_s: float | None = None, *, on_progress: OnProgress | None = None, progress: bool = False) -> RunView:
        """Wait for the run's end, with any final status. Raises `RunTimeout` when `timeout_s` passes first.

        `progress`: show a bar of the rows, at a terminal or in a notebook.
        """
        with display.progress_bar(self.id, shown=progress) as on_step:
            return self._wait(timeout_s, display.run_steps(on_step, on_progress))

    def _wait(self, timeout_s: float | None, on_progress: OnProgress) -> RunView:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.refresh().final:
            on_progress(self.view)
            if until is not None and time.monotonic() >= until:
                raise RunTimeout(f"run {self.id} has not ended yet", hint="the run continues; wait again")
            time.sleep(runs.POLL_S)
        on_progress(self.view)
        return self.view

    def cancel(self) -> RunView:
        """Record a cancel request and return the run. Raises `Conflict` if the run ended otherwise."""
        self.view = runs.run_of(self._client.send(runs.cancel_call(self.id)))
        return self.view

    def retry_failed(self) -> RunHandle:
        """Start a run over the failed rows of this completed one; it publishes the output of all rows again.

        Raises `Conflict` without failed rows, and `Gone` if the output is no longer kept.
        """
        view = runs.run_of(self._client.send(runs.retry_call(self.id)))
        return RunHandle(self._client, view, rows=self._rows, output_format=self._format)

    def save(self, output: Path, errors: Path | None = None) -> None:
        """Save the output of the ended run at this path, and the file of its failed rows, if any.

        Each file appears complete and replaces an existing one. Raises `BadRequest` for a path that cannot be written.
        """
        for link, path in ((self.view.output, output), (self.view.errors, errors)):
            if link and path is not None:
                with runs.written(path) as file:
                    self._client.download(link, file)

    def __iter__(self) -> Iterator[Any]:
        """Raises `RunEnded` for a run that is not completed."""
        runs.check_iterable(self._format)
        view = runs.require_completed(self.view if self.view.final else self.wait())
        errors, rows = self._client.lines(view.errors), runs.OutputRows()
        failure = runs.row_failure(next(errors, ""))
        for line in self._client.lines(view.output):
            value = rows.value(line, failure)
            if isinstance(value, runs.RowFailed):
                failure = runs.row_failure(next(errors, ""))
            yield value
