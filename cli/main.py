"""The `penstock` command: its verbs, each loaded on call, and the last handler of errors."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import penstock
from penstock.cli import exits
from penstock.cli.lazy import show_brackets, stand_ins
from penstock.cli.verbs import verbs
from penstock.process_lifetime import leave_at_once


class Penstock(TyperGroup):
    """All verbs, as stand-ins."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = stand_ins(verbs())
        show_brackets(self)


app = typer.Typer(
    cls=Penstock,
    name="penstock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=exits.HELP,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Durable, micro-batched model inference on Celery and Redis.

    First steps: penstock up examples/square.py, then penstock call square '{"x": 4}'.
    """


def main() -> None:
    """The process exits with one of the codes in `exits`."""
    leave_at_once()
    as_json = "--json" in sys.argv[1:]
    try:
        # In standalone mode typer prints wrong usage itself; otherwise it raises the error, or returns an early exit's code.
        code = app(prog_name="penstock", standalone_mode=not as_json)
    except Exception as error:  # noqa: BLE001 - the last handler: every error is reported in the same way
        code = exits.report(error, as_json=as_json)
    sys.exit(code)


if __name__ == "__main__":
    main()
