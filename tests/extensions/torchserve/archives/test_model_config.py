"""YAML of archives comes from elsewhere: whatever it holds, it is read soon as plain values, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadArchive
from penstock.extensions.torchserve.archives.model_config import read_config


def nested_merges(levels: int) -> str:
    """Each level merges the one below nine times: 9 to the power of `levels` members once they are written out."""
    lines = ["a0: &a0 {key: 1}"]
    lines += [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}" for level in range(1, levels + 1)]
    return "\n".join(lines)


WIDE = "b: &b {" + ", ".join(f"k{place}: 1" for place in range(9_000)) + "}\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (nested_merges(11), "mappings that merge others have more than 10,000 members"),
        (WIDE + "c: {<<: [" + ", ".join(["*b"] * 101) + "]}", "merges more than 100 others"),
        (WIDE + "\n".join(f"c{place}: {{<<: *b}}" for place in range(1_000)), "have more than 10,000 members"),
        ("a: " + ":".join(["1"] * 100_000), "a number has more than 400 characters"),
        ("a: 0x" + "f" * 900_000, "a number has more than 400 characters"),
        ("a: &a [*a]", "more than 100,000 values"),
    ],
    ids=["nested-merges", "many-merges", "merges-of-one", "sexagesimal", "hexadecimal", "itself"],
)
def test_a_file_that_would_become_billions_of_values_is_refused_before_it_does(text: str, why: str) -> None:
    with pytest.raises(BadArchive, match=why):
        read_config(text.encode(), "model-config.yaml", "m.mar")


@pytest.mark.parametrize(
    "value",
    [
        "!!int ''",
        "!!float ''",
        "!!int '-'",
        "!!bool maybe",
        "!!timestamp then",
        ":".join(["1"] * 199) + ".0",
        "!!python/name:os.x",
    ],
)
def test_a_value_on_which_the_reader_itself_fails_is_a_fault_of_the_archive(value: str) -> None:
    with pytest.raises(BadArchive, match="is not valid YAML"):
        read_config(f"a: {value}".encode(), "model-config.yaml", "m.mar")


@given(tag=st.sampled_from(["int", "float", "bool", "timestamp", "binary", "set", "omap", "pairs", "null"]), text=st.text())
def test_whatever_a_tag_stands_before_it_is_a_value_or_a_fault(tag: str, text: str) -> None:
    quoted = text.replace("'", "''")
    try:
        found = read_config(f"a: !!{tag} '{quoted}'".encode("utf-8", "surrogatepass"), "model-config.yaml", "m.mar")
    except BadArchive:
        return
    assert list(found) == ["a"]


def test_a_mapping_may_merge_others() -> None:
    text = "base: &base {batchSize: 4}\nhandler: {<<: *base, top: 5}"
    found = read_config(text.encode(), "model-config.yaml", "m.mar")
    assert found == {"base": {"batchSize": 4}, "handler": {"batchSize": 4, "top": 5}}
