"""`penstock doctor`: prints one line per check, and what to do about each fault; or the devices of this machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import exits
from penstock.cli.display import is_colored, print_json
from penstock.cli.ops import checks
from penstock.cli.ops.checks import Finding, Level
from penstock.cli.options import ConfigOption, JsonOption, ModelsArgument, SlotsOption
from penstock.cli.serve import setup
from penstock.errors import ConfigError

app = typer.Typer(add_completion=False)

_COLORS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@app.command()
def doctor(
    models: ModelsArgument = None,
    devices: Annotated[
        bool,
        typer.Option("--devices", help="Instead show cores and GPUs, and which slot of a worker started here would get what."),
    ] = False,
    config: ConfigOption = None,
    slots: SlotsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine, and the models named or those of penstock.toml. Exits with 1 if anything fails. Starts nothing.

    Each failed check names the next command.
    """
    if devices:
        from penstock.cli.models.devices import show_devices

        chosen = setup.serve_setup(models or [], config=config, flags={}, slots=slots)
        return show_devices(chosen.settings.specs(), as_json=as_json)
    findings = _findings(models or [], config, slots)
    for finding in findings:
        if as_json:
            print_json(asdict(finding))
        else:
            typer.echo(line_of(finding))
    if any(finding.level is Level.FAIL for finding in findings):
        raise typer.Exit(exits.FAILED)
    return None


def line_of(finding: Finding) -> str:
    word = finding.level.value.ljust(4)
    shown = typer.style(word, fg=_COLORS[finding.level]) if is_colored(sys.stdout) else word
    line = f"{shown}  {finding.name.ljust(11)}  {finding.text}"
    return f"{line}\n      next: {finding.next}" if finding.next else line


def _findings(models: list[str], config: Path | None, slots: int | None) -> list[Finding]:
    try:
        return checks.findings(setup.serve_setup(models, config=config, flags={}, slots=slots).settings)
    except ConfigError as error:
        # The other checks depend on the settings; checking their defaults instead would mislead.
        return [checks.python(), checks.cores(), checks.broken_settings(error)]
