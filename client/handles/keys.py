# Generated from client/handles/keys_aio.py by `make sync-client`. Change that file, not this one.
"""API keys that are made and revoked while gateways run. Every call needs a key with the role manage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.client import calls, protocol

if TYPE_CHECKING:
    from penstock.client.sync import Client


class Keys:
    """The keys are as docs/production/security.md describes them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def add(
        self,
        key_id: str,
        roles: Sequence[str],
        *,
        owner: str | None = None,
        rate_per_s: float | None = None,
        burst: int | None = None,
        max_open_jobs: int | None = None,
        expires_at: str | None = None,
        webhook: str | None = None,
    ) -> dict[str, Any]:
        """Make a key. Only this result contains its secret, as `key`. `expires_at`: an ISO date with an offset.

        Raises `Conflict` if there is a key with this id.
        """
        settings = {
            "owner": owner,
            "rate_per_s": rate_per_s,
            "burst": burst,
            "max_open_jobs": max_open_jobs,
            "expires_at": expires_at,
            "webhook": webhook,
        }
        return protocol.object_of(self._client.send(calls.add_key_call(key_id, roles, settings)))

    def all(self) -> list[dict[str, Any]]:
        """The keys of the gateway's settings and those made at run time, without their secrets."""
        return protocol.rows_of(self._client.send(calls.keys_call()))

    def revoke(self, key_id: str) -> dict[str, Any]:
        """End a key and its waiting requests and streams, at every gateway within the result's `within_s` seconds.

        Raises `NotFound`, and `Conflict` for a key of the settings.
        """
        return protocol.object_of(self._client.send(calls.revoke_key_call(key_id)))
