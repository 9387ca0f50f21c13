"""`penstock rpc`: one call, from a shell."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from penstock.cli.display import print_json
from penstock.cli.options import KeyOption, UrlOption, connect
from penstock.client.protocol import HttpCall

app = typer.Typer(add_completion=False)


@app.command()
def rpc(
    method: Annotated[str, typer.Argument(help="predict, submit, get, cancel or tally.")],
    params: Annotated[str, typer.Argument(help='JSON, such as \'{"model": "square", "input": {"x": 4}}\'.')] = "{}",
    notify: Annotated[bool, typer.Option("--notify", help="Send it as a notification, which has no response.")] = False,
    url: UrlOption = None,
    api_key: KeyOption = None,
) -> None:
    """Make one JSON-RPC call and print its result. Exits with 1 if the response is an error."""
    try:
        call = {"jsonrpc": "2.0", "method": method, "params": json.loads(params), **({} if notify else {"id": 1})}
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"PARAMS is not JSON: {error}") from None
    with connect(url, api_key) as client:
        headers = {"content-type": "application/json"}
        # A call that is sent again makes a second job, unless it has an idempotency key.
        answer = client.send(HttpCall("POST", "/rpc", headers=headers, content=json.dumps(call).encode(), repeatable=False))
    response = json.loads(answer.content or b"{}")
    if "error" in response:
        typer.echo(f"error {response['error']['code']}: {response['error']['message']}", err=True)
        raise typer.Exit(1)
    if "result" in response:
        print_json(response["result"])
