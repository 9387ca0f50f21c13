"""The distribution that provides `penstock`: its name for pip, its installed release, and the packages of its extras.

On the package index `penstock` is another project, so every command that this code prints takes the name from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from penstock.errors import ConfigError

NAME = "penstock-inference"
# What the command and the server import beyond the client; tests/unit/test_dependencies.py compares this with pyproject.toml.
MODULES = {
    "cli": ("pydantic", "rich", "typer"),
    "serve": (
        "celery",
        "fastapi",
        "httptools",
        "jinja2",
        "jsonschema_rs",
        "kombu",
        "orjson",
        "packaging",
        "prometheus_client",
        "psutil",
        "python_multipart",
        "redis",
        "starlette",
        "structlog",
        "tomlkit",
        "uvicorn",
    ),
}
_WHAT = {"cli": "more than the client", "serve": "the server"}


def requirement(*extras: str) -> str:
    """The distribution with these extras, as a requirements file has it: `penstock-inference[onnx,text]`."""
    return f"{NAME}[{','.join(extras)}]"


def install_hint(*extras: str) -> str:
    """The command that installs these extras, in the quotes that a shell needs."""
    return f"pip install '{requirement(*extras)}'"


def require_extra(extra: str, *, who: str) -> None:
    """Raises `ConfigError` if what `who` imports of the extra `cli` or `serve` is not installed; `serve` includes `cli`."""
    wanted = MODULES["cli"] + (MODULES["serve"] if extra == "serve" else ())
    if missing := [name for name in wanted if find_spec(name) is None]:
        raise _lacking(extra, missing, who)


def explained(error: BaseException) -> BaseException:
    """The error itself; a `ConfigError` that says what to install if it reports a missing module of `cli` or `serve`."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    extra = next((extra for extra, modules in MODULES.items() if name in modules), "")
    return _lacking(extra, [name], "this") if extra else error


def installed_version() -> str:
    """The installed release; `0+unknown` in a checkout on the path that was never installed."""
    # Looking through what is installed takes a third of the time in which a model's process loads our modules.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(NAME)
    except PackageNotFoundError:
        return "0+unknown"


def _lacking(extra: str, missing: Sequence[str], who: str) -> ConfigError:
    text = f"{who} needs {_WHAT[extra]}: {', '.join(missing)} cannot be imported"
    return ConfigError(text, hint=install_hint(extra))
