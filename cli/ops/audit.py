"""`penstock audit`: what operators did, newest first."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.display import print_json, print_table
from penstock.cli.options import JsonOption, KeyOption, UrlOption, connect

app = typer.Typer(add_completion=False)
_PAGE = 200


@app.command()
def audit(
    limit: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="The most acts to show.")] = 50,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show what operators did: who, what, on what, when, and how it ended.

    10,000 acts of keys that manage are kept, and as many of others.
    It takes a key with the role manage. `--json` prints one act per line.
    """
    acts: list[dict[str, Any]] = []
    with connect(url, api_key) as client:
        while len(acts) < limit:
            before, wanted = acts[-1]["number"] if acts else None, min(_PAGE, limit - len(acts))
            page = client.operators.audit(before=before, limit=wanted)
            acts += page
            if len(page) < wanted:
                break
    if as_json:
        for act in acts:
            print_json(act)
    else:
        print_table(("WHEN", "KEY", "ACT", "ON", "SAID", "OUTCOME"), [_row(act) for act in acts])


def _row(act: dict[str, Any]) -> tuple[str, ...]:
    on, said = " ".join(act["on"].values()), " ".join(f"{name}={value}" for name, value in act["said"].items())
    return (act["at"], act["by"] or "-", act["act"], on or "-", said or "-", act["outcome"] or "not known")
