"""pyarrow, for those who read or write Parquet, and a plain word where it is not installed."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.errors import ConfigError


def arrow() -> Any:
    """The module `pyarrow` with `pyarrow.parquet` loaded; raises `ConfigError` where it is not installed."""
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow, which is not installed", hint="pip install 'penstock[bulk]'") from error
