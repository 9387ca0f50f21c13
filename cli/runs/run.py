"""`penstock run MODEL INPUT -o OUTPUT` starts a run; its group adds the commands on runs that exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from penstock.cli.options import (
    ConfigOption,
    JsonOption,
    KeyOption,
    QuietOption,
    RedisOption,
    StateDirOption,
    model_names,
)
from penstock.cli.runs import existing
from penstock.cli.runs.session import DriversOption, MaxFailedOption, ModelsOption, RunSession, create_run
from penstock.cli.runs.where import RunUrlOption, at_gateway, gateway_url, store_options
from penstock.errors import BadRequest

START = "start"
# More parts than drivers, because a driver that ends early takes another part.
_PARTS_PER_DRIVER = 4
_EXISTING: dict[str, Callable[..., None]] = {
    "resume": existing.resume,
    "list": existing.list_runs,
    "show": existing.show,
    "cancel": existing.cancel,
}


class RunGroup(TyperGroup):
    """`penstock run MODEL ...` means `penstock run start MODEL ...`; a model named like a command needs the long form."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Without arguments or with --help, the group shows the options of its main command.
        if not args:
            args = ["--help"]
        if args[0] not in self.commands:
            args = [START, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=RunGroup,
    add_completion=False,
    help="Run a model over the rows of files: penstock run MODEL INPUT -o OUTPUT. Resumable, in the input's order.",
)


@app.command(START, epilog=f"Commands on runs that exist: {', '.join(_EXISTING)}. Their options: penstock run COMMAND --help.")
def start(
    model: Annotated[str, typer.Argument(help="The model's name.", autocompletion=model_names)],
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A file, folder, glob or fsspec URL.")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="Where the output goes: .jsonl, .parquet, .csv or .tsv, a path or URL.")
    ],
    column: Annotated[
        list[str] | None, typer.Option("--column", help="FIELD=COLUMN, or COLUMN alone for its bare value. Repeatable.")
    ] = None,
    carry: Annotated[
        list[str] | None,
        typer.Option("--carry", help="A column of the input to repeat in the output; '*' for all. Repeatable."),
    ] = None,
    version: Annotated[str, typer.Option(help="The model's version. Default: the current default version.")] = "",
    input_format: Annotated[
        str, typer.Option("--format", help="jsonl, csv, tsv, parquet, text, files. Default: by name.")
    ] = "",
    output_format: Annotated[str, typer.Option("--output-format", help="jsonl, parquet, csv or tsv. Default: by name.")] = "",
    errors: Annotated[str, typer.Option(help="Where failed rows go. Default: OUTPUT.errors.jsonl.")] = "",
    max_failed: MaxFailedOption = None,
    shard_rows: Annotated[int, typer.Option(min=0, help="Rows per shard. Default: learned from their run time.")] = 0,
    window_rows: Annotated[int, typer.Option(min=1, help="At most this many rows under way.")] = 10_000,
    deadline_s: Annotated[
        float, typer.Option("--deadline", min=0, help="Seconds after which unfinished rows are given up. Default: none.")
    ] = 0.0,
    parts: Annotated[
        int,
        typer.Option(min=0, max=256, help="Parts of the input, each driven by itself. Default: four per driver if many."),
    ] = 0,
    drivers: DriversOption = 1,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="A word by which the run is found and cancelled. Repeatable.")
    ] = None,
    headers: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME:VALUE", help="A header that all rows are told. Repeatable.")
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option("--query", metavar="NAME=VALUE", help="A query parameter for all rows. Repeatable.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing output, once the new one is complete.")
    ] = False,
    models: ModelsOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    url: RunUrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Run a model over every row of INPUT. Ctrl-C interrupts the run; `penstock run resume` continues it.

    Uses the store that is named, or that of this folder's `penstock up`; without either it starts a store and workers itself.
    With --url a gateway has the run: INPUT, a file, is uploaded, runners drive it, and the output is fetched.
    """
    from penstock.run import RunSpec, checked_tags

    said: dict[str, Any] = {
        "version": version,
        "columns": columns_of(column or []),
        "carry": tuple(carry or ()),
        "input_format": input_format,
        "output_format": output_format,
        "max_failed": max_failed,
        "shard_rows": shard_rows,
        "deadline_s": deadline_s,
        "tags": checked_tags(tags or ()),
        "headers": headers_of(headers or []),
        "query": query_of(query or []),
    }
    own = {"--drivers": drivers > 1, "--models": models, **store_options(config, state_dir, redis_url)}
    if gateway := gateway_url(url, own):
        runs = at_gateway(gateway, api_key, as_json=as_json, quiet=quiet)
        raise typer.Exit(runs.start(model, source, output, errors, {**said, "parts": parts}, overwrite=overwrite))
    spec = RunSpec(
        **said,
        model=model,
        input=_absolute(source),
        output=_absolute(output),
        errors=_absolute(errors) if errors else "",
        window_rows=window_rows,
        overwrite=overwrite,
        parts=parts_for(parts, drivers),
    )
    session = RunSession(models, config, state_dir, redis_url, as_json, quiet)
    raise typer.Exit(session.drive(lambda runs: create_run(runs, spec), model=model, drivers=drivers))


for name, command in _EXISTING.items():
    app.command(name)(command)


def parts_for(parts: int, drivers: int) -> int:
    """The number of parts of the input; 0: chosen for this number of drivers."""
    if parts == 1 and drivers > 1:
        raise BadRequest("one part has one driver", hint=f"leave out --drivers, or give --parts {drivers} or more")
    if parts:
        return parts
    return 1 if drivers == 1 else _PARTS_PER_DRIVER * drivers


def columns_of(pairs: Sequence[str]) -> dict[str, str]:
    """FIELD=COLUMN pairs as a mapping; with a single COLUMN, its bare value is the input."""
    halves = [text.split("=", 1) if "=" in text else ["", text] for text in pairs]
    columns = dict(halves)
    if len(columns) != len(halves) or not all(columns.values()) or ("" in columns and len(columns) > 1):
        raise BadRequest(
            f"--column {' --column '.join(pairs)} does not say which column each field takes",
            hint="write --column FIELD=COLUMN once per field, or a single --column COLUMN",
        )
    return columns


def headers_of(lines: Sequence[str]) -> dict[str, str]:
    """NAME:VALUE lines as a mapping, with names in lower case."""
    return _said([(line, *_halves(line, ":")) for line in lines], "--header", "NAME:VALUE")


def query_of(pairs: Sequence[str]) -> dict[str, str]:
    return _said([(pair, *pair.partition("=")) for pair in pairs], "--query", "NAME=VALUE")


def _halves(line: str, mark: str) -> tuple[str, str, str]:
    name, separator, value = line.partition(mark)
    return name.strip().lower(), separator, value.strip()


def _said(parts: Sequence[tuple[str, str, str, str]], option: str, form: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for text, name, mark, value in parts:
        if not name or not mark or name in values:
            why = f"names {name!r} a second time" if name in values else f"is not {form}"
            raise BadRequest(f"{option} {text[:200]!r} {why}", hint=f"write {option} {form} once per name")
        values[name] = value
    return values


def _absolute(name: str) -> str:
    """An absolute path, because a run may be resumed from another folder."""
    return name if "://" in name else str(Path(name).absolute())
