"""Templates and sections that extensions bring, from a package of another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.gateway.auth.keys import NOBODY
from penstock.gateway.dashboard.parts import Section, sections
from penstock.gateway.dashboard.render import MenuEntry, Renderer

PAGE = """{% extends "base.html" %}
{% block title %}Lent{% endblock %}
{% block main %}{% for section in sections %}{% include section.template %}{% endfor %}{% endblock %}
"""


@pytest.fixture
def renderer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Renderer:
    templates = tmp_path / "lent_pages" / "templates"
    templates.mkdir(parents=True)
    (tmp_path / "lent_pages" / "__init__.py").touch()
    (templates / "page.html").write_text(PAGE)
    (templates / "_part.html").write_text('{% from "_macros.html" import chip %}{{ chip("good", section.shown) }}')
    # It has the name of one of ours.
    (templates / "base.html").write_text("theirs")
    monkeypatch.syspath_prepend(tmp_path)
    return Renderer("/p", keyed=False, menu=(MenuEntry("lent", "/ui/lent", "Lent"),), templates={"lent": "lent_pages"})


async def test_a_page_of_an_extension_has_our_frame_its_sections_and_its_marked_entry(renderer: Renderer) -> None:
    shown = {"here": "lent", "sections": [Section("lent/_part.html", "<one>"), Section("lent/_part.html", "two")]}
    body = bytes((await renderer.page("lent/page.html", NOBODY, shown)).body).decode()
    assert '<a href="/p/ui/lent" aria-current="page">Lent</a>' in body
    assert body.index('<span class="chip good">&lt;one&gt;</span>') < body.index('<span class="chip good">two</span>')
    assert "theirs" not in body


async def test_what_has_nothing_to_show_is_no_section() -> None:
    async def asked(section: Section | None) -> Section | None:
        return section

    first, second = Section("a", 1), Section("b", 2)
    assert await sections(map(asked, (first, None, second))) == [first, second]
