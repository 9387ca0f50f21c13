"""`penstock bench`: measure a model, or any HTTP endpoint, under load."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer
from rich.console import Console

from penstock.cli import exits
from penstock.cli.display import print_faint
from penstock.cli.measure.progress import show_load_progress
from penstock.cli.options import JsonOption, KeyOption, UrlOption, connect
from penstock.client.sync import Client
from penstock.loadtest.observed.stack_facts import ModelFacts, read_model_facts
from penstock.loadtest.options import (
    LoadOptions,
    adapter_for,
    bodies_for,
    check_writable,
    describe_load,
    server_address,
    shape_of,
)
from penstock.loadtest.report.csv_row import append_row
from penstock.loadtest.report.page import render
from penstock.loadtest.report.table import print_result
from penstock.loadtest.result import LoadTestResult
from penstock.loadtest.run import LoadTest, run_load_test
from penstock.loadtest.workload import CallStyle, Kind
from penstock.running_stack import running_stack, state_dir_of

app = typer.Typer(add_completion=False)

_LOAD, _CALL, _OUT = "Load", "Calls", "Output"

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL|URL", help="A model's name, or the URL of any HTTP endpoint.")]
RateOption = Annotated[
    str | None,
    typer.Option(
        help="Calls per second, answered or not: 200; 50..500 (10 steps), 50..500/4, 50,100,400 (steps); 50:500 (a ramp). "
        "Default: 100.",
        rich_help_panel=_LOAD,
    ),
]
ClosedOption = Annotated[
    int | None, typer.Option(min=1, help="Instead of a rate: keep this many calls under way.", rich_help_panel=_LOAD)
]
ArrivalsOption = Annotated[
    str, typer.Option(help="poisson, constant, or trace:FILE with one time per line.", rich_help_panel=_LOAD)
]
DurationOption = Annotated[
    float | None,
    typer.Option("--duration", min=0.5, help="Seconds measured. Default: 30, or the trace's length.", rich_help_panel=_LOAD),
]
WarmUpOption = Annotated[
    float | None,
    typer.Option("--warm-up", min=0, help="Seconds before, not measured. Default: 5; for a trace 0.", rich_help_panel=_LOAD),
]
DeadlineOption = Annotated[
    float | None,
    typer.Option(
        "--deadline", min=0.001, help="Seconds; later answers do not count as goodput. Sent to penstock.", rich_help_panel=_LOAD
    ),
]
ProcessesOption = Annotated[int, typer.Option(min=1, help="Processes that send the load together.", rich_help_panel=_LOAD)]
ConnectionsOption = Annotated[
    int, typer.Option(min=1, help="At most this many connections, without --closed.", rich_help_panel=_LOAD)
]
SeedOption = Annotated[int, typer.Option(help="The same seed sends at the same times.", rich_help_panel=_LOAD)]
BodyOption = Annotated[
    str | None,
    typer.Option(
        help="JSON, @FILE, a folder, FILE.jsonl, or schema: made from the model's schema. Default: schema.",
        rich_help_panel=_CALL,
    ),
]
ClientOption = Annotated[
    CallStyle, typer.Option(help="sync: answer now. async: submit and poll. submit: the 202 is the end.", rich_help_panel=_CALL)
]
TargetOption = Annotated[
    Kind | None, typer.Option(help="The server whose API is called. Default: penstock; for a URL, http.", rich_help_panel=_CALL)
]
VersionOption = Annotated[str, typer.Option(help="The model's version. Default: the one in force.", rich_help_panel=_CALL)]
MethodOption = Annotated[
    str, typer.Option(help="With --target http. Default: POST with a body, else GET.", rich_help_panel=_CALL)
]
HeaderOption = Annotated[
    list[str] | None, typer.Option(help="'Name: value', sent with every call. Repeatable.", rich_help_panel=_CALL)
]
CsvOption = Annotated[Path | None, typer.Option(help="Append one line to this file.", rich_help_panel=_OUT)]
HtmlOption = Annotated[Path | None, typer.Option(help="Write one page with plots to this file.", rich_help_panel=_OUT)]


@app.command()
def bench(
    model: ModelArgument,
    rate: RateOption = None,
    closed: ClosedOption = None,
    arrivals: ArrivalsOption = "poisson",
    duration_s: DurationOption = None,
    warm_up_s: WarmUpOption = None,
    deadline_s: DeadlineOption = None,
    processes: ProcessesOption = 1,
    connections: ConnectionsOption = 1_024,
    seed: SeedOption = 1,
    body: BodyOption = None,
    client: ClientOption = CallStyle.SYNC,
    target: TargetOption = None,
    version: VersionOption = "",
    method: MethodOption = "",
    header: HeaderOption = None,
    csv: CsvOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Measure a model, or any HTTP endpoint, under load.

    penstock bench square --rate 50..500 --html report.html     penstock bench http://host:80/predict --body @cat.jpg --closed 8

    Exits with 1 when the load generator was the limit, because then the result says nothing about the server.
    """
    options = LoadOptions(
        subject=model,
        target=target,
        url=url,
        version=version,
        client=client,
        method=method,
        headers=tuple(header or ()),
        api_key=api_key,
        body=body,
        rate=rate,
        closed=closed,
        arrivals=arrivals,
        duration_s=duration_s,
        warm_up_s=warm_up_s,
        deadline_s=deadline_s,
        processes=processes,
        connections=connections,
        seed=seed,
    )
    check_writable(csv)
    check_writable(html)
    result = measure(options)
    _report(result, csv=csv, html=html, as_json=as_json)
    raise typer.Exit(exits.FAILED if result.generator_limited or not result.outcome.answered else exits.OK)


def measure(options: LoadOptions) -> LoadTestResult:
    """The result; raises `typer.Exit` when Ctrl-C was pressed twice."""
    # structlog would log to stdout, which belongs to the report.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with connect(options.url, options.api_key) if options.kind is Kind.PENSTOCK else nullcontext() as gateway:
        test = _load_test(options, gateway)
        with show_load_progress(test.shape.whole_s) as on_progress:
            try:
                return asyncio.run(run_load_test(test, on_progress))
            except asyncio.CancelledError:
                raise typer.Exit(exits.INTERRUPTED) from None


def _load_test(options: LoadOptions, gateway: Client | None) -> LoadTest:
    shape = shape_of(options)
    facts = read_model_facts(gateway, options.subject, options.version) if gateway else ModelFacts()
    base = server_address(options, gateway.base_url if gateway else None)
    bodies = bodies_for(options, base, facts)
    adapter = adapter_for(options, base, has_body=bool(bodies))
    return LoadTest(
        adapter=adapter,
        shape=shape,
        bodies=bodies,
        description=describe_load(options, shape),
        facts=facts,
        client=gateway,
        processes=options.processes,
        roots=_stack_at(base),
    )


def _stack_at(base: str) -> tuple[int, ...]:
    """The process of this folder's `penstock up`, if its gateway is measured."""
    stack = running_stack(state_dir_of(Path.cwd()))
    return (stack.pid,) if stack and stack.url == base else ()


def _report(result: LoadTestResult, *, csv: Path | None, html: Path | None, as_json: bool) -> None:
    if html:
        html.write_text(render(result), encoding="utf-8")
        print_faint(f"written: {html}")
    if csv:
        append_row(result, csv)
        print_faint(f"appended a line: {csv}")
    if as_json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        # A file gets a wide terminal's layout.
        print_result(result, Console(width=None if sys.stdout.isatty() else 140))
