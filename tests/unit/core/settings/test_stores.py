"""`[stores.NAME]`: which stores there are beside the main one, and which models lie there."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.settings.store_url import store_by_pattern
from penstock.settings.stores import idle_patterns
from penstock.settings.tables import Settings

MAIN = '[store]\nurl = "redis://main"\n'
B = '[stores.b]\nurl = "redis://other"\nmodels = ["ocr*"]\n'


def load(folder: Path, text: str, env: dict[str, str] | None = None) -> Settings:
    file = folder / "penstock.toml"
    file.write_text(text)
    return Settings.load(file, env or {})


def faults(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(folder, text)
    return "\n".join(refused.value.faults)


def test_a_store_has_a_url_and_the_patterns_of_its_models(tmp_path: Path) -> None:
    table = load(tmp_path, MAIN + B).stores["b"]
    assert (table.url, table.models, table.durability) == ("redis://other", ("ocr*",), "local")


def test_the_environment_sets_a_store_and_its_patterns_with_commas_between(tmp_path: Path) -> None:
    env = {"PENSTOCK_STORES__C__URL": "valkey://third", "PENSTOCK_STORES__C__MODELS": "a, b*"}
    table = load(tmp_path, MAIN + B, env).stores["c"]
    assert (table.url, table.models) == ("redis://third", ("a", "b*"))


def test_a_secret_url_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://u:p@third\n")
    found = load(tmp_path, MAIN, {"PENSTOCK_STORES__C__URL_FILE": str(tmp_path / "url")})
    assert found.stores["c"].url == "redis://u:p@third"


@pytest.mark.parametrize(
    "other",
    [
        "redis://main",
        "rediss://user:word@MAIN:6379/0",
        "valkey://main/",
    ],
)
def test_a_store_under_two_names_is_refused(tmp_path: Path, other: str) -> None:
    told = faults(tmp_path, f'{MAIN}[stores.b]\nurl = "{other}"\n')
    assert told == "stores.b.url: is the same store as store.url; give each store a server, or a database, of its own"


def test_two_databases_of_one_server_are_two_stores(tmp_path: Path) -> None:
    assert load(tmp_path, f'{MAIN}[stores.b]\nurl = "redis://main/1"\n').stores["b"].models == ()


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('[stores.main]\nurl = "redis://x"', "is the name of the store of [store]"),
        ('[stores."A B"]\nurl = "redis://x"', "lower-case letters"),
        ("[stores.b]\nmodels = []", "stores.b.url: missing"),
        ('[stores.b]\nurl = "http://x"', "must start with redis://"),
        ('[stores.b]\nurl = "redis://x"\nmodels = ["a b"]', "write the name of a model, or a pattern"),
        ('[stores.b]\nurl = "redis://x"\nmodel = ["a"]', "did you mean models?"),
    ],
)
def test_a_table_that_cannot_be_used_is_a_fault_in_words(tmp_path: Path, table: str, told: str) -> None:
    assert told in faults(tmp_path, MAIN + table)


def test_the_url_of_a_store_is_never_shown(tmp_path: Path) -> None:
    assert "other" not in repr(load(tmp_path, MAIN + B).stores)


def test_the_first_store_of_which_a_pattern_matches_has_the_model() -> None:
    patterns = {"b": ("ocr", "x:1"), "c": ("o*",)}
    assert [store_by_pattern(queue, patterns) for queue in ("ocr", "ocr:1", "x:1", "x")] == ["b", "c", "b", "main"]


def test_a_pattern_that_decides_nothing_is_told(tmp_path: Path) -> None:
    stores = load(tmp_path, MAIN + B + '[stores.c]\nurl = "redis://third"\nmodels = ["ocr", "zz*", "tts:1"]\n').stores
    assert idle_patterns(stores, ["ocr", "tts"]) == [
        "stores.c.models: what 'ocr' matches lies in 'b' already, which stands before it",
        "stores.c.models: 'zz*' matches no model of these settings",
    ]
