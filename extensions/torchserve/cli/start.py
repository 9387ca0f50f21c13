"""`penstock torchserve`: takes the command line of `torchserve`, and serves what it would serve, in the foreground."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

import penstock
from penstock.cli.display import print_faint
from penstock.cli.options import StateDirOption
from penstock.cli.serve import setup
from penstock.cli.serve.up import serve
from penstock.errors import ConfigError
from penstock.extensions.torchserve.archives.parity import Parity, SettingParity, not_plain
from penstock.extensions.torchserve.cli.translation import (
    TorchServeCommandLine,
    TranslatedDeployment,
    as_toml,
    this_machine,
    translated,
)
from penstock.extensions.torchserve.cli.writing import write_settings
from penstock.running_stack import running_stack

app = typer.Typer(add_completion=False)
# Written at each start, so that the processes read it, and people too.
WRITTEN_NAME = "torchserve.toml"
_NO_LOG_FILES = "penstock writes its log to stdout"
_UNUSED = {
    "--log-config": _NO_LOG_FILES,
    "--cpp-log-config": _NO_LOG_FILES,
    "--plugins-path": "plugins are Java archives; there is no Java here",
}
_IGNORED_PATH = Annotated[Path | None, typer.Option(help="Accepted, and listed as ignored.", hidden=True)]


@app.command()
def torchserve(
    more_models: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    start: Annotated[bool, typer.Option("--start", help="Start, which is what happens without it too.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End the stack that was started in this folder.")] = False,
    version: Annotated[bool, typer.Option("--version", "-v", help="Print the version.")] = False,
    ts_config: Annotated[
        Path | None, typer.Option("--ts-config", help="config.properties. Default: TS_CONFIG_FILE, or the one in this folder.")
    ] = None,
    model_store: Annotated[Path | None, typer.Option("--model-store", help="The folder with the archives.")] = None,
    models: Annotated[
        list[str] | None, typer.Option("--models", help="all, or [name=]file in the model store; several may follow.")
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Always so here.")] = False,
    no_config_snapshots: Annotated[bool, typer.Option("--no-config-snapshots", "--ncs", help="Always so here.")] = False,
    disable_token_auth: Annotated[bool, typer.Option("--disable-token-auth", "--dt", help="Ask for no tokens.")] = False,
    enable_model_api: Annotated[bool, typer.Option("--enable-model-api", help="Allow to register and unregister.")] = False,
    workflow_store: Annotated[
        Path | None, typer.Option("--workflow-store", help="The folder with workflows (.war). Default: the model store.")
    ] = None,
    log_config: _IGNORED_PATH = None,
    cpp_log_config: _IGNORED_PATH = None,
    plugins_path: Annotated[Path | None, typer.Option("--plugins-path", "--ppath", hidden=True)] = None,
    state_dir: StateDirOption = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write", metavar="FILE", help="Start nothing: write a penstock.toml that serves the same; - for stdout."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON when ready; nothing else on stdout.")] = False,
) -> None:
    """Start what `torchserve` would start with the same options, config.properties and model store: its archives, its routes at
    its addresses, its metrics. Stays in the foreground; Ctrl-C finishes running batches, then ends.

    What is not as it was in TorchServe is printed with its reason. --write FILE writes the same as settings, and
    says what becomes of each; check them with `penstock config --check`.
    """
    folder = (state_dir or Path(".penstock")).absolute()
    if version:
        typer.echo(f"penstock {penstock.__version__}, for archives of TorchServe up to 0.12")
        raise typer.Exit
    if stop:
        return end_stack(folder)
    given = {
        "--log-config": log_config,
        "--cpp-log-config": cpp_log_config,
        "--plugins-path": plugins_path,
    }
    options = TorchServeCommandLine(
        config=ts_config,
        model_store=model_store,
        models=[*(models or []), *(more_models or [])],
        workflow_store=workflow_store,
        without_tokens=disable_token_auth,
        with_model_api=enable_model_api,
    )
    deployment = translated(options, os.environ, Path.cwd(), this_machine())
    if write is not None:
        return write_settings(deployment, write, as_json=as_json)
    _report(deployment, given)
    _need_something(deployment)
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / WRITTEN_NAME
    written.write_text(as_toml(deployment), "utf-8")
    chosen = setup.serve_setup([], config=written, flags={"store.state_dir": folder}, need_files=True)
    # TorchServe serves the other models while one cannot be loaded.
    raise typer.Exit(serve(chosen, keep_trying=True, as_json=as_json))


def end_stack(state_dir: Path) -> None:
    """Ask the stack of this state folder to end, as Ctrl-C does."""
    stack = running_stack(state_dir)
    if stack is None:
        typer.echo(f"nothing runs in {state_dir}")
        return
    os.kill(stack.pid, signal.SIGTERM)
    typer.echo(f"process {stack.pid} finishes its batches and ends")


def _report(deployment: TranslatedDeployment, given: Mapping[str, Path | None]) -> None:
    unused = [SettingParity(name, str(value), Parity.IGNORED, why=_UNUSED[name]) for name, value in given.items() if value]
    for one in [*not_plain(deployment.report), *unused]:
        print_faint(f"penstock torchserve: {one}")


def _need_something(deployment: TranslatedDeployment) -> None:
    """Without a model, only a server at which models may be registered is of use."""
    if deployment.models or deployment.workflows or deployment.settings.get("torchserve.model_api"):
        return
    raise ConfigError(
        f"no model is to be loaded{': every one was refused' if any(one.key == 'model' for one in deployment.report) else ''}",
        hint="name archives of the model store with --models, or let them be registered with --enable-model-api",
    )
