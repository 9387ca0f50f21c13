"""`penstock call`: sends one input to a model; its output goes to stdout, its timings to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from penstock.cli import exits
from penstock.cli.completion import completed
from penstock.cli.display import print_faint, print_json, timing_line
from penstock.cli.jobs import many, streams
from penstock.cli.jobs import profile as recording
from penstock.cli.jobs.outputs import OutputFileOption, json_members, readable, save, write_raw
from penstock.cli.lazy import added
from penstock.cli.options import JsonOption, KeyOption, TimeoutOption, UrlOption, connect, model_names
from penstock.client import protocol
from penstock.client.calls import JobOptions
from penstock.client.handles.job_handle import JobHandle
from penstock.client.problems import WaitTimeout
from penstock.client.sync import Client
from penstock.client.views import JobView
from penstock.errors import PenstockError
from penstock.job import Priority

app = typer.Typer(add_completion=False)

# With an offset from UTC, because a time without one differs from machine to machine.
MOMENTS = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z"]

# Most answers come sooner; after this time the command shows why it waits.
_USUAL_WAIT_S = 2.0


@app.command()
def call(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="The model's name.", autocompletion=model_names)],
    input: Annotated[str | None, typer.Argument(help="JSON, @FILE for a file's content, or - for stdin.")] = None,
    form: Annotated[
        list[str] | None, typer.Option("--form", "-F", help="NAME=TEXT or NAME=@FILE: a part of a form, instead of INPUT.")
    ] = None,
    version: Annotated[str | None, typer.Option("--version", help="The model's version. Default: its default version.")] = None,
    priority: Annotated[Priority | None, typer.Option(help="Bulk jobs give way to interactive ones.")] = None,
    deadline_s: Annotated[
        float | None, typer.Option("--deadline", help="Give up after this many seconds, queue included.")
    ] = None,
    delay_s: Annotated[float | None, typer.Option("--delay", help="Run it after this many seconds, not before.")] = None,
    not_before: Annotated[
        datetime | None,
        typer.Option(formats=MOMENTS, help="Run it at this moment, not before: 2026-12-24T18:00:00+01:00."),
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="A word by which `penstock jobs` finds it; up to 8 times.")
    ] = None,
    content_type: Annotated[str | None, typer.Option(help="Media type of the input, which is then sent unchanged.")] = None,
    timeout_s: TimeoutOption = None,
    no_wait: Annotated[bool, typer.Option("--async", help="Print the job's id and exit; the job continues.")] = False,
    times: Annotated[
        int, typer.Option(min=1, max=many.MOST_TIMES, help="Submit this number of jobs of the input, and count how they end.")
    ] = 1,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Record the job's batch with a profiler; show its stages and the trace's folder."),
    ] = False,
    file: OutputFileOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print only the output: bytes unchanged, text without quotes.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Submit one input to a model and print its output.

    penstock call square '{"x": 4}'     penstock call classify @cat.jpg     cat rows.json | penstock call score -

    penstock call detect -F image=@street.jpg -F threshold=0.4

    penstock call blur @cat.jpg -o blurred.png
    """
    value, media_type = _read_form(form, input, content_type) if form else read_input(input, content_type)
    if profile and no_wait:
        raise typer.BadParameter("--profile waits for the job and --async does not: leave out one of them")
    options: JobOptions = {
        "version": version,
        "priority": priority,
        "deadline_s": deadline_s,
        "delay_s": delay_s,
        "not_before": not_before,
        "tags": tags or (),
    }
    options.update(cast("JobOptions", added(context)))
    with connect(url, api_key) as client:
        if times > 1:
            need_json_alone(value, media_type, others=bool(profile or raw or file))
            handles = client.submit_many(model, [value] * times, **options)
            return many.show_ids(handles, as_json=as_json) if no_wait else many.watch(client, handles, as_json=as_json)
        if profile:
            recording.arm(client, model, version)
        is_plain = not (no_wait or raw or as_json or profile or file or timeout_s)
        is_streaming = is_plain and streams.is_streaming(client, model, version)
        handle = client.submit(model, value, content_type=media_type, **options)
        if no_wait:
            return _show_accepted(handle, as_json=as_json)
        if is_streaming:
            return _show_stream(client, handle)
        output = _await_output(client, handle, timeout_s)
        recorded = recording.await_recording(client, handle.refresh()) if profile else None
        saved = save(output, file, handle.id) if file else None
        _show(client, handle, output, saved, raw=raw, as_json=as_json, beside={"profile": recorded} if profile else {})
    return recording.show(recorded) if profile and not as_json else None


def need_json_alone(value: Any, media_type: str | None, *, others: bool) -> None:
    if media_type is not None or isinstance(value, Path):
        raise typer.BadParameter("--times takes an INPUT of JSON, as an argument")
    if others:
        raise typer.BadParameter("--times shows no outputs: leave out --profile, --raw and -o")


def _read_form(given: list[str], text: str | None, content_type: str | None) -> tuple[bytes, str]:
    """The form to send and its media type. Text is sent unchanged; the model's schema says how it is read."""
    if text is not None or content_type is not None:
        raise typer.BadParameter("-F makes a form of its own: leave out INPUT and --content-type")
    body = protocol.form_body([form_part(one) for one in given])
    return body.content, body.content_type


def form_part(given: str) -> protocol.HttpPart:
    name, equals, value = given.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"-F takes NAME=TEXT or NAME=@FILE, not {given!r}")
    return protocol.file_part(name, Path(value[1:])) if value.startswith("@") else (name, (None, value.encode()))


def read_input(text: str | None, content_type: str | None) -> tuple[Any, str | None]:
    """The value to send and its media type (None: the client chooses)."""
    if text is None:
        raise typer.BadParameter("INPUT is missing: give JSON, @FILE, - for stdin, or a form with -F NAME=VALUE")
    if text == "-":
        return _typed(sys.stdin.buffer.read(), content_type)
    if text.startswith("@"):
        return Path(text[1:]), content_type
    if content_type is not None:
        return text.encode(), content_type
    try:
        return json.loads(text), None
    except ValueError as fault:
        raise typer.BadParameter(
            f"INPUT is not JSON ({fault}). Quote text as JSON ('\"hello\"'), name a file (@cat.jpg), "
            "read stdin (-), or give --content-type."
        ) from fault


def _typed(content: bytes, content_type: str | None) -> tuple[bytes, str]:
    """Bytes from a pipe, with their media type: JSON if they parse as JSON, because there is no file name to guess from."""
    if content_type is None:
        try:
            json.loads(content)
        except ValueError:
            return content, protocol.BYTES
    return content, content_type or protocol.JSON


def _await_output(client: Client, handle: JobHandle, timeout_s: float | None) -> Any:
    with _going_on(handle):
        return _wait_and_explain(client, handle, timeout_s)


def _show_stream(client: Client, handle: JobHandle) -> None:
    with _going_on(handle):
        job = streams.show(handle.events())
    print_faint(timing_line(job, max_batch_size=_max_batch_size(client, job)))


@contextmanager
def _going_on(handle: JobHandle) -> Iterator[None]:
    """On an interrupt, say that the job continues."""
    try:
        yield
    except KeyboardInterrupt:
        print_faint(
            completed(f"job {handle.id} continues: penstock jobs show {handle.id}, or penstock jobs cancel {handle.id}")
        )
        raise typer.Exit(exits.INTERRUPTED) from None


def _wait_and_explain(client: Client, handle: JobHandle, timeout_s: float | None) -> Any:
    """Wait for the output. If it takes long because the model does not run, print the reason."""
    if timeout_s is not None and timeout_s <= _USUAL_WAIT_S:
        return handle.result(timeout_s)
    with suppress(WaitTimeout):
        return handle.result(_USUAL_WAIT_S)
    if why := _unready(client, handle.view):
        print_faint(f"the job waits: {handle.view.model}: {why}")
    return handle.result(None if timeout_s is None else timeout_s - _USUAL_WAIT_S)


def _unready(client: Client, job: JobView) -> str:
    # The job is already accepted, so a fault of this request is ignored.
    with suppress(PenstockError):
        versions = client.model(job.model).get("versions") or {}
        return str((versions.get(job.version) or {}).get("why") or "")
    return ""


def _show_accepted(handle: JobHandle, *, as_json: bool) -> None:
    if as_json:
        return print_json(dict(handle.view.body))
    return typer.echo(handle.id)


def _show(
    client: Client, handle: JobHandle, output: Any, saved: Path | None, *, raw: bool, as_json: bool, beside: dict[str, Any]
) -> None:
    """`saved`: the file with the output. `beside`: further members of the JSON."""
    if raw and saved is None:
        return write_raw(output)
    job = handle.refresh()
    if as_json:
        shown = json_members(output) if saved is None else {"file": str(saved)}
        return print_json({"job": dict(job.body), **shown, **beside})
    sys.stdout.write((readable(output) if saved is None else str(saved)) + "\n")
    sys.stdout.flush()
    return print_faint(timing_line(job, max_batch_size=_max_batch_size(client, job)))


def _max_batch_size(client: Client, job: JobView) -> int | None:
    # Only the line of timings needs this, so a fault of this request is not reported.
    with suppress(PenstockError):
        return max_batch_size_of(client.models(), job.model)
    return None


def max_batch_size_of(models: list[dict[str, Any]], name: str) -> int | None:
    view: dict[str, Any] = next((model for model in models if model.get("name") == name), {})
    size = (view.get("policy") or {}).get("max_batch_size")
    return size if isinstance(size, int) else None
