"""Keys in the store: what extensions keep of a key stands beside its own settings, where versions before read it."""

from __future__ import annotations

import json

from penstock.access import Key, Role
from penstock.broker.store import registry
from penstock.broker.store.registry import StoredKey

KEY = {"id": "ci", "sha256": "12" * 32, "roles": ["submit"], "owner": "team", "webhook": "https://a.example/"}


def test_a_key_that_a_version_before_stored_keeps_the_settings_of_extensions() -> None:
    text = json.dumps({"key": KEY, "made_at": 5.0, "made_by": "admin", "text": ""}).encode()
    found = registry.stored_keys().decode({b"ci": text})["ci"]
    assert found.key.extension_settings == {"webhook": "https://a.example/"}
    assert (found.key.owner, found.made_by, found.text) == ("team", "admin", text)


def test_a_key_is_stored_in_the_form_that_a_version_before_reads() -> None:
    key = Key("ci", "12" * 32, frozenset({Role.SUBMIT}), "team", extension_settings={"webhook": "https://a.example/"})
    text = registry.put_key(None, StoredKey(key, 5.0, "admin")).args[2]
    assert isinstance(text, bytes)
    table = json.loads(text)["key"]
    assert table.items() >= KEY.items()
    assert "extension_settings" not in table


def test_what_is_no_key_opens_nothing() -> None:
    assert registry.stored_keys().decode({b"a": b"[]", b"b": b'{"key": 3}', b"c": b"\xff"}) == {}
