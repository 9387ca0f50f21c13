"""`penstock torchserve --write`: writes a penstock.toml from a deployment of TorchServe, with a report of every setting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer

from penstock.cli.display import print_json
from penstock.cli.serve import setup
from penstock.errors import BadRequest, ConfigError
from penstock.extensions.torchserve.archives.parity import Parity, SettingParity
from penstock.extensions.torchserve.cli.translation import TranslatedDeployment, as_toml


def write_settings(deployment: TranslatedDeployment, output: Path, *, as_json: bool) -> None:
    """Write the settings that serve the same models at the same addresses, and say what becomes of each setting.

    Overwrites nothing, starts nothing.
    """
    if deployment.origin is None and not (deployment.models or deployment.report):
        raise ConfigError(
            f"there is nothing to write: {Path.cwd()} has no config.properties, and no model store is named",
            hint="name them with --ts-config and --model-store, or run it where `torchserve` was started",
        )
    text = as_toml(deployment)
    if str(output) != "-":
        write(output, text)
        # What was written is read as `penstock up` will read it: a fault shows now.
        setup.serve_setup([], config=output.absolute(), flags={}, need_files=True)
    if as_json:
        written = "" if str(output) == "-" else str(output.absolute())
        report = [one.as_json() for one in deployment.report]
        return print_json({"written": written, "models": [model.name for model in deployment.models], "report": report})
    if str(output) == "-":
        return typer.echo(text, nl=False)
    _print_report(deployment.report)
    return typer.echo(f"wrote {output}: {len(deployment.models)} versions of models; start it with: penstock up {output}")


def write(path: Path, text: str) -> None:
    """Raises `BadRequest` if the file exists."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise BadRequest(f"{path} exists, and is left as it is", hint="name another file with --write") from error
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}", hint="name another file with --write") from error


def _print_report(report: Sequence[SettingParity]) -> None:
    for one in report:
        typer.echo(str(one))
    counts = Counter(one.parity for one in report)
    typer.echo(", ".join(f"{counts[parity]} {parity}" for parity in Parity))
