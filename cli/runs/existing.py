"""Commands on runs that exist: `penstock run resume|list|show|cancel`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from penstock.cli.display import age, print_fields, print_ids, print_json, print_table
from penstock.cli.options import (
    ConfigOption,
    JsonOption,
    KeyOption,
    QuietOption,
    RedisOption,
    StateDirOption,
)
from penstock.cli.runs.session import (
    DriversOption,
    MaxFailedOption,
    ModelsOption,
    RunArgument,
    RunSession,
    create_run,
    read_run,
)
from penstock.cli.runs.where import RunUrlOption, at_gateway, gateway_url, store_options
from penstock.errors import Conflict

_PAGE = 200

if TYPE_CHECKING:
    from penstock.broker.store.runs import RunStore
    from penstock.run import Run, RunSpec
    from penstock.runs.execution import ResumeOptions


def resume(
    run_id: RunArgument,
    failed: Annotated[
        bool, typer.Option("--failed", help="Run the failed rows of a completed run again, and publish its output again.")
    ] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Continue although the input or the model's version has changed.")
    ] = False,
    max_failed: MaxFailedOption = None,
    drivers: DriversOption = 1,
    models: ModelsOption = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="With --url: the file into which the output is fetched.")
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    url: RunUrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Continue a run that was interrupted, cancelled or failed. No row is lost or written twice.

    Of a run with --parts that goes on elsewhere, drive parts until it has ended. With --url, where runners continue a run,
    follow it and fetch its output; with --failed too, once the gateway has run the failed rows again.
    """
    own = {"--accept-changes": accept_changes, "--max-failed": max_failed, "--drivers": drivers > 1}
    if gateway := gateway_url(url, {**own, "--models": models, **store_options(config, state_dir, redis_url)}):
        there = at_gateway(gateway, api_key, as_json=as_json, quiet=quiet)
        raise typer.Exit(there.retry_failed(run_id, output) if failed else there.resume(run_id, output))
    if output is not None:
        raise typer.BadParameter("-o is of runs at a gateway: name it with --url; a run in a store knows its output")
    from penstock.run import retry_spec
    from penstock.runs.execution import ResumeOptions

    session = RunSession(models, config, state_dir, redis_url, as_json, quiet)
    options = ResumeOptions(accept_changes=accept_changes, max_failed=max_failed)

    def find_run(runs: RunStore) -> str:
        return create_run(runs, retry_spec(read_run(runs, run_id))) if failed else make_resumable(runs, run_id, options)

    raise typer.Exit(session.drive(find_run, previous=run_id, options=options, drivers=1 if failed else drivers))


def list_runs(
    limit: Annotated[int, typer.Option(min=1, help="At most this many, newest first.")] = 20,
    tag: Annotated[str | None, typer.Option(help="Only runs of this tag.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    url: RunUrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """List the newest runs. `--json` prints one per line."""
    if gateway := gateway_url(url, store_options(config, state_dir, redis_url)):
        return at_gateway(gateway, api_key, as_json=as_json, quiet=quiet).print_list(limit=limit, tag=tag)
    from penstock.cli.runs.display import record_of

    with RunSession(None, config, state_dir, redis_url, as_json).records() as runs:
        shown, now = list(islice(_newest(runs, tag), limit)), runs.now()
    if quiet:
        print_ids(run.id for run in shown)
    elif as_json:
        for run in shown:
            print_json(record_of(run, now))
    elif shown:
        print_table(("RUN", "STATE", "MODEL", "ROWS", "FAILED", "AGE", "OUTPUT"), [_row(run, now) for run in shown])
    else:
        typer.echo("no runs", err=True)
    return None


def show(
    run_id: RunArgument,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    as_json: JsonOption = False,
    url: RunUrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show one run: its settings, its progress, its parts, why it ended."""
    if gateway := gateway_url(url, store_options(config, state_dir, redis_url)):
        return at_gateway(gateway, api_key, as_json=as_json).show(run_id)
    from penstock.cli.runs.display import fields_of, part_record, part_row, record_of

    with RunSession(None, config, state_dir, redis_url, as_json).records() as runs:
        run, parts, now = read_run(runs, run_id), runs.parts(run_id), runs.now()
    if as_json:
        return print_json(record_of(run, now) | ({"parts": [part_record(part, now) for part in parts]} if parts else {}))
    print_fields(fields_of(run, now))
    if parts:
        typer.echo()
        print_table(("PART", "STATE", "ROWS", "FAILED", "DRIVER", "INPUT", "NOTE"), [part_row(part, now) for part in parts])
    return None


def cancel(
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Ids of runs; or use --tag.")] = None,
    tag: Annotated[str | None, typer.Option(help="Cancel the runs of this tag instead.")] = None,
    config: ConfigOption = None,
    state_dir: StateDirOption = None,
    redis_url: RedisOption = None,
    as_json: JsonOption = False,
    url: RunUrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Cancel runs, or those of a tag. Rows written so far are kept, and `resume` continues a run."""
    from penstock.runs.ownership import cancel_run

    if bool(run_ids) == (tag is not None):
        raise typer.BadParameter("name one RUN or several, or the runs of a tag with --tag")
    if gateway := gateway_url(url, store_options(config, state_dir, redis_url)):
        return at_gateway(gateway, api_key, as_json=as_json).cancel(run_ids or (), tag)
    with RunSession(None, config, state_dir, redis_url, as_json).records() as runs:
        ids = run_ids or [run.id for run in _newest(runs, tag) if not run.state.final]
        for one in ids:
            try:
                word = cancel_run(runs, one)
            except Conflict:
                if run_ids:
                    raise
                # The run has ended since it was listed.
                continue
            print_json({"run": one, "cancel": word}) if as_json else typer.echo(f"run {one}: {word}")
    if not ids:
        typer.echo(f"no run of the tag {tag} is open", err=True)
    return None


def _newest(runs: RunStore, tag: str | None) -> Iterator[Run]:
    """The runs, newest first; only those of the tag, if given. Raises `BadRequest` for an invalid tag."""
    from penstock.run import checked_tag

    wanted, after = None if tag is None else checked_tag(tag), ""
    while page := runs.page(after=after, limit=_PAGE).runs:
        yield from (run for run in page if wanted is None or wanted in run.spec.tags)
        after = page[-1].id


def make_resumable(runs: RunStore, run_id: str, options: ResumeOptions) -> str:
    """Reopen a run that ended early; returns its id."""
    from penstock.runs.ownership import reopen_run

    run = read_run(runs, run_id)
    if run.spec.parts > 1 and (spec := resumed_spec(run.spec, options)) != run.spec:
        # Other drivers continue with the same options.
        runs.reopen(run_id, spec)
    if read_run(runs, run_id).state.final:
        reopen_run(runs, run_id)
    return run_id


def resumed_spec(spec: RunSpec, options: ResumeOptions) -> RunSpec:
    """The settings with which all drivers continue a run."""
    from penstock.run import ACCEPT_CHANGES

    accepted = {ACCEPT_CHANGES: "1"} if options.accept_changes else {}
    most = spec.max_failed if options.max_failed is None else options.max_failed
    return replace(spec, max_failed=most, metadata=spec.metadata | accepted)


def _row(run: Run, now: float) -> tuple[str, ...]:
    from penstock.cli.runs.display import state_word

    done, failed, total = run.counts.done, run.counts.failed, run.counts.total
    rows = f"{done + failed:,}" + (f" of {total:,}" if total else "")
    created = datetime.fromtimestamp(run.created_at, UTC)
    return (
        run.id,
        state_word(run, now),
        run.spec.model,
        rows,
        f"{failed:,}",
        age(created, now=datetime.fromtimestamp(now, UTC)),
        run.spec.output,
    )
