"""`penstock doctor`: prints one line per check, and what to do about each fault."""

from __future__ import annotations

import sys
from dataclasses import asdict

import typer

from penstock.cli import exits
from penstock.cli.display import is_colored, print_json
from penstock.cli.ops import checks
from penstock.cli.ops.checks import Finding, Level
from penstock.cli.options import ConfigOption, JsonOption
from penstock.cli.serve import plan
from penstock.errors import ConfigError

app = typer.Typer(add_completion=False)

_COLORS = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


@app.command()
def doctor(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check this machine and say what to do next. Exits with 1 if anything fails."""
    found = _findings(config)
    for finding in found:
        if as_json:
            print_json(asdict(finding))
        else:
            typer.echo(line_of(finding))
    if any(finding.level is Level.FAIL for finding in found):
        raise typer.Exit(exits.FAILED)


def line_of(finding: Finding) -> str:
    word = finding.level.value.ljust(4)
    shown = typer.style(word, fg=_COLORS[finding.level]) if is_colored(sys.stdout) else word
    line = f"{shown}  {finding.name.ljust(11)}  {finding.text}"
    return f"{line}\n      next: {finding.next}" if finding.next else line


def _findings(config: ConfigOption) -> list[Finding]:
    try:
        return checks.findings(plan.make_plan([], config=config, flags={}).settings)
    except ConfigError as error:
        # The other checks depend on the settings; checking their defaults instead would mislead.
        return [checks.python(), checks.cores(), checks.broken_settings(error)]
