"""The site of docs/ (mkdocs.yml): its navigation names every page, and its pages read as they do on a code host."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import markdown
import pytest
from markdown_it import MarkdownIt
from mkdocs.config import load_config

from tests.markdown import ROOT, anchors

DOCS = ROOT / "docs"
SITE_PAGES = sorted(DOCS.rglob("*.md"))
GROUPS = ["Home", "Start", "How-to", "Production", "Reference", "Extend", "Why"]
PARTS = re.compile(r"<(li|ol|ul|h[1-6]|table|tr|pre|img|blockquote|code|em|strong)\b")


@pytest.fixture(scope="module")
def config() -> Any:
    loaded = load_config(str(ROOT / "mkdocs.yml"))
    return hooks().on_config(loaded)


def hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_site_hooks", DOCS / "site" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pages_of(nav: Any) -> Iterator[str]:
    for entry in nav:
        target = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(target, str):
            yield target
        else:
            yield from pages_of(target)


def on_the_site(page: Path, config: Any) -> str:
    html = markdown.markdown(
        page.read_text("utf-8"), extensions=config.markdown_extensions, extension_configs=config.mdx_configs
    )
    return re.sub(r'<a class="headerlink".*?</a>', "", html)


def test_the_navigation_names_every_page_once_in_its_group(config: Any) -> None:
    named = list(pages_of(config.nav))
    assert Counter(named) == Counter(str(page.relative_to(DOCS)) for page in SITE_PAGES)
    assert [title for group in config.nav for title in group] == [title for title in GROUPS if title in str(config.nav)]


@pytest.mark.parametrize("page", SITE_PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_has_the_same_parts_and_anchors_on_the_site_as_on_a_code_host(page: Path, config: Any) -> None:
    # The site's Markdown wants four spaces before a list in a list, and an empty line before a list.
    elsewhere = MarkdownIt("commonmark").enable("table").render(page.read_text("utf-8"))
    here = on_the_site(page, config)
    assert Counter(PARTS.findall(here)) == Counter(PARTS.findall(elsewhere))
    assert set(re.findall(r'<h[1-6] id="([^"]*)"', here)) >= anchors(page)


def test_a_link_out_of_docs_names_the_path_or_leads_into_the_repository() -> None:
    rewrite = hooks().rewrite_links
    here = DOCS / "production" / "kubernetes.md"

    def rewritten(text: str, repository: str = "") -> str:
        return str(rewrite(text, here=here, docs=DOCS, repository=repository))

    chart = "[the chart](../../compose/helm/values.yaml)"
    assert rewritten(chart) == "the chart (`compose/helm/values.yaml`)"
    assert rewritten("[SECURITY.md](../../SECURITY.md#reports)") == "SECURITY.md"
    assert rewritten(chart, "https://example.org/penstock/") == (
        "[the chart](https://example.org/penstock/blob/main/compose/helm/values.yaml)"
    )
    for inside in ("[limits](limits.md)", "[HTTP](../reference/http.md)", "[gone](../../gone.md)", "[out](../../../etc)"):
        assert rewritten(inside) == inside
