"""`penstock new`: writes a starter folder with a model, its settings and a test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.display import print_json
from penstock.cli.options import JsonOption
from penstock.errors import BadRequest
from penstock.job import MODEL_NAME

app = typer.Typer(add_completion=False)

HANDLER = '''"""The model {name}: change `inference`, and the types of its input and output."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import Context, Handler


@dataclass
class Input:
    x: float


@dataclass
class Output:
    y: float


class {cls}(Handler):
    def initialize(self, context: Context) -> None:
        """Called once per process: load weights here."""
        self.factor = 2.0

    def inference(self, batch: list[Input]) -> list[Output]:
        """Return one output per input, in the same order. Compute the whole batch at once if you can."""
        return [Output(y=item.x * self.factor) for item in batch]
'''

SETTINGS = """# Every setting is listed by `penstock config show`.
[models."{name}"]
source = "{module}.py:{cls}"
max_batch_size = 8      # at most this many inputs in one call
max_wait_s = 0.01       # how long an input waits for others to join its batch
workers = 1             # processes that run the model
"""

TEST = """from __future__ import annotations

from {module} import {cls}, Input, Output


def test_every_input_has_its_output() -> None:
    model = {cls}()
    model.factor = 2.0
    assert model.inference([Input(x=1.0), Input(x=4.0)]) == [Output(y=2.0), Output(y=8.0)]
"""


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The name of the model and of the folder.")],
    folder: Annotated[Path | None, typer.Option("--folder", help="Where to write. Default: a new folder NAME here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a folder with a model, its settings and a test. Overwrites nothing."""
    if not MODEL_NAME.fullmatch(name):
        raise typer.BadParameter(f"{name!r} cannot be a model's name: 1 to 64 letters, digits, '_', '.' or '-'")
    target = folder or Path(name)
    written = write_all(target, starter_files(name))
    if as_json:
        return print_json({"folder": str(target.absolute()), "files": [str(path) for path in written]})
    for path in written:
        typer.echo(f"wrote {path}")
    return typer.echo(f"""next: cd {target} && penstock up, then penstock call {name} '{{"x": 4}}'""")


def starter_files(name: str) -> dict[str, str]:
    """The content of the files, by name."""
    module = "".join(letter if letter.isalnum() else "_" for letter in name.lower())
    module = f"model_{module}" if module[0].isdigit() else module
    words = {"name": name, "module": module, "cls": "".join(word.capitalize() for word in module.split("_"))}
    return {
        f"{module}.py": HANDLER.format(**words),
        "penstock.toml": SETTINGS.format(**words),
        f"test_{module}.py": TEST.format(**words),
    }


def write_all(folder: Path, files: dict[str, str]) -> list[Path]:
    """Write all files or, if one of them exists, none."""
    present = [name for name in files if (folder / name).exists()]
    if present:
        raise BadRequest(
            f"{folder} already has {', '.join(present)}; nothing was written", hint="choose another NAME or --folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, "utf-8")
    except OSError as fault:
        raise BadRequest(f"cannot write to {folder}: {fault.strerror}", hint="choose another --folder") from fault
    return [folder / name for name in files]
