"""`penstock webhooks new-key|secret|log|replay|dismiss`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

import typer

from penstock.cli.display import print_fields, print_ids, print_json, print_secret, print_table
from penstock.cli.options import JsonOption, KeyOption, QuietOption, UrlOption, connect
from penstock.extensions.webhooks.webhook import new_signing_key
from penstock.words import duration, plural

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Signing keys and secrets of webhooks; what became of their events."
)

IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of jobs and runs; or use --all.")]
EveryOption = Annotated[bool, typer.Option("--all", help="Every event that was given up.")]
# Of all undelivered events, this many are replayed or dismissed per request.
_AT_ONCE = 200


def options_of_call(
    webhook: Annotated[str | None, typer.Option(help="The URL to which the job's end is sent, signed.")] = None,
    webhook_events: Annotated[
        list[str] | None, typer.Option("--webhook-event", help="Only this event, such as job.failed; several times for more.")
    ] = None,
) -> dict[str, Any]:
    return {"webhook": webhook, "webhook_events": webhook_events or ()}


def options_of_key(
    webhook: Annotated[str | None, typer.Option(help="Where the events of its jobs go.")] = None,
) -> dict[str, Any]:
    return {"webhook": webhook}


@app.command("new-key")
def new_key(as_json: JsonOption = False) -> None:
    """Make a signing key: prints it on stdout, once. It turns webhooks on: PENSTOCK_WEBHOOKS__SIGNING_KEYS, or its _FILE.

    To rotate it, set NEW,OLD, give each receiver its new secret, and drop OLD a day later.
    """
    made = new_signing_key()
    if as_json:
        return print_json({"key": made})
    print_secret(
        made, "the signing key, shown only this once: all gateways of a store set PENSTOCK_WEBHOOKS__SIGNING_KEYS to it"
    )
    return None


@app.command()
def secret(as_json: JsonOption = False, url: UrlOption = None, api_key: KeyOption = None) -> None:
    """Print what your receivers verify events with. While the operator rotates the key: the new secret, then the old."""
    with connect(url, api_key) as client:
        secrets = client.webhooks.secrets()
    if as_json:
        return print_json({"secrets": secrets})
    print_secret("\n".join(secrets), "the webhook secret, shown whenever you ask: your receivers verify events with it")
    return None


@app.command()
def log(
    event: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="The id of a job or a run. Default: all events that were given up.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Without ID: at most this many, newest first.")] = 20,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show what became of the last event of a job or run, and each attempt to deliver it; without ID, the events given up.

    `--json` prints one of those per line, with its attempts.
    """
    with connect(url, api_key) as client:
        if event is not None:
            return _show(client.webhooks.log(event), as_json=as_json)
        events = list(islice(client.webhooks.undelivered(), limit))
    if quiet:
        return print_ids(one["id"] for one in events)
    if as_json:
        for one in events:
            print_json(one)
    elif events:
        print_table(("ID", "EVENT", "AT", "ANSWER", "URL"), [_row(one) for one in events])
    else:
        typer.echo("no undelivered events", err=True)
    return None


def _show(event: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        return print_json(event)
    print_fields({name: event.get(name) for name in ("id", "url", "event", "state", "webhook_id", "at")})
    if event["attempts"]:
        typer.echo()
        rows = [
            (one["at"], one["event"], str(one["tried"]), one["outcome"], one["answer"], duration(one["took_s"]))
            for one in event["attempts"]
        ]
        print_table(("AT", "EVENT", "TRY", "OUTCOME", "ANSWER", "TOOK"), rows)
    return None


@app.command()
def replay(
    ids: IdsArgument = None,
    every: EveryOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Send the last events of these jobs and runs once more, under their old ids, also if they were delivered."""
    _change("replay", ids, every, as_json=as_json, url=url, api_key=api_key)


@app.command()
def dismiss(
    ids: IdsArgument = None,
    every: EveryOption = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Take events that were given up off the list. They are not sent again."""
    _change("dismiss", ids, every, as_json=as_json, url=url, api_key=api_key)


def _change(verb: str, ids: list[str] | None, every: bool, *, as_json: bool, url: str | None, api_key: str | None) -> None:
    if bool(ids) == every:
        raise typer.BadParameter("name one ID or several, or --all")
    with connect(url, api_key) as client:
        change = client.webhooks.replay if verb == "replay" else client.webhooks.dismiss
        # The list is read first: an event that is given up again at once would stand on it for ever.
        wanted = [one["id"] for one in client.webhooks.undelivered()] if every else ids or []
        count = sum(change(wanted[at : at + _AT_ONCE]) for at in range(0, len(wanted), _AT_ONCE))
    if as_json:
        return print_json({"replayed" if verb == "replay" else "dismissed": count})
    return typer.echo(f"{plural(count, 'event')} {'sent once more' if verb == 'replay' else 'dismissed'}")


def _row(event: Mapping[str, Any]) -> tuple[str, ...]:
    attempts = event["attempts"]
    answer = attempts[-1]["answer"] if attempts else "-"
    return (event["id"], event.get("event", "-"), event.get("at", "-"), answer, event["url"])
