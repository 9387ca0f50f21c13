"""The table [jsonrpc] of penstock.toml, and PENSTOCK_JSONRPC__MAX_BATCH in the environment."""

from __future__ import annotations

from penstock.settings.extension_tables import ExtensionTable
from penstock.settings.keys import Table
from penstock.settings.models import Count


class JsonRpcSettings(ExtensionTable, Table):
    """`max_batch`: how many calls one request may hold. Without `enabled` there is no /rpc."""

    enabled: bool = True
    max_batch: Count = 100
