"""`penstock new`: writes a starter folder with a model, its settings and a test, from one of the templates in `starters/`."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from penstock.cli.display import print_json
from penstock.cli.options import JsonOption
from penstock.errors import BadRequest
from penstock.model_spec import name_fault

app = typer.Typer(add_completion=False)

DEFAULT_TEMPLATE = "json"
_SETTINGS = """# Every setting is listed by `penstock config`.
[models."$name"]
source = "$module.py"
max_wait_s = 0.01       # how long an input waits for others to join its batch
slots = 1               # copies of the model in each worker
"""
# A section of a template begins with this prefix and its file's name. `first` and `try` are commands, not files.
_SECTION = re.compile(r"^=== (.+)\n", re.MULTILINE)
_BASE64 = ".base64"


@dataclass(frozen=True, slots=True)
class Starter:
    """`files`: contents by path. `first`: the command to run before `penstock up`, if any. `call`: the rest of a first call."""

    files: dict[str, bytes]
    call: str
    first: str = ""


def templates() -> dict[str, str]:
    """The purpose of each template, by its name."""
    paths = sorted((files("penstock.cli.models") / "starters").iterdir(), key=lambda path: path.name)
    return {path.name.removesuffix(".txt"): path.read_text("utf-8").partition("\n")[0] for path in paths}


def _list_templates(show: bool) -> None:
    if show:
        for name, purpose in templates().items():
            typer.echo(f"{name:<11} {purpose}")
        raise typer.Exit


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The name of the model and of the folder.")],
    template: Annotated[
        str, typer.Option("--template", "-t", help="What the model is like; --list-templates shows all.")
    ] = DEFAULT_TEMPLATE,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where to write. Default: a new folder NAME here.")] = None,
    list_templates: Annotated[
        bool, typer.Option("--list-templates", is_eager=True, callback=_list_templates, help="List the templates and exit.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a folder with a model, its settings and a test. Overwrites nothing."""
    if fault := name_fault(name):
        raise typer.BadParameter(f"{name!r} cannot be a model's name: {fault}")
    known = templates()
    if template not in known:
        raise typer.BadParameter(f"there is no template {template!r}; there are {', '.join(known)}")
    target, starter = folder or Path(name), starter_of(name, template)
    written = write_all(target, starter.files)
    if as_json:
        return print_json({"folder": str(target.absolute()), "files": [str(path) for path in written]})
    for path in written:
        typer.echo(f"wrote {path}")
    steps = [f"cd {target}", *([starter.first] if starter.first else []), "penstock up"]
    return typer.echo(f"next: {' && '.join(steps)}, then penstock call {name} {starter.call}")


def starter_of(name: str, template: str = DEFAULT_TEMPLATE) -> Starter:
    """The files of a template for a model of this name."""
    text = (files("penstock.cli.models") / "starters" / f"{template}.txt").read_text("utf-8")
    _, *parts = _SECTION.split(text)
    words = _words(name)
    sections = {Template(title).substitute(words): body for title, body in zip(parts[::2], parts[1::2], strict=True)}
    commands = {title: sections.pop(title, "").strip() for title in ("first", "try")}
    written = {"penstock.toml": _SETTINGS, **sections}
    contents = {title.removesuffix(_BASE64): _content(title, body, words) for title, body in written.items()}
    return Starter(contents, call=commands["try"], first=commands["first"])


def _words(name: str) -> dict[str, str]:
    """The model's name as a Python module, function and class."""
    module = "".join(letter if letter.isalnum() else "_" for letter in name.lower())
    module = f"model_{module}" if module[0].isdigit() else module
    return {"name": name, "module": module, "function": module, "cls": "".join(word.capitalize() for word in module.split("_"))}


def _content(title: str, body: str, words: dict[str, str]) -> bytes:
    return base64.b64decode(body) if title.endswith(_BASE64) else Template(body).substitute(words).encode()


def write_all(folder: Path, contents: dict[str, bytes]) -> list[Path]:
    """Write all files or, if one of them exists, none."""
    present = [name for name in contents if (folder / name).exists()]
    if present:
        raise BadRequest(
            f"{folder} already has {', '.join(present)}; nothing was written", hint="choose another NAME or --folder"
        )
    try:
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    except OSError as fault:
        raise BadRequest(f"cannot write to {folder}: {fault.strerror}", hint="choose another --folder") from fault
    return [folder / name for name in contents]
