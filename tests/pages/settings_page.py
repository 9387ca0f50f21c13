"""docs/reference/settings.md: its prose and its reasons are written by hand, the other columns come from the settings."""

from __future__ import annotations

from tests.markdown import ROOT
from tests.pages import kept_tables
from tests.pages.setting_rows import SettingRow, setting_rows

PAGE = ROOT / "docs" / "reference" / "settings.md"
HEAD = ("Setting, environment variable", "Type", "Default", "What it does, and why")


def rewritten(page: str) -> str:
    """Return the page with its tables brought up to date."""
    cells = {(row.table, row.key): cells_of(row) for row in setting_rows()}
    return kept_tables.rewritten(page, word="settings", head=HEAD, cells=cells)


def cells_of(row: SettingRow) -> tuple[str, ...]:
    variable = f"<br>`{row.variable}`" if row.variable else ""
    return f"`{row.key}`{variable}", row.type, row.default
