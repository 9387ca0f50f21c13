"""Whether the history of models is kept."""

from __future__ import annotations

from penstock.settings.extension_tables import ExtensionTable
from penstock.settings.keys import Table


class HistorySettings(ExtensionTable, Table):
    """`enabled` false: gateways and workers keep no history of their models."""

    enabled: bool = True
