"""The pieces that every HTML report is built of. Pure; all text is escaped here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from penstock.loadtest.report.style import STYLE


def document(title: str, parts: Sequence[str]) -> str:
    """One page that fetches nothing."""
    head = (
        f"<meta charset='utf-8'><meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<meta name='color-scheme' content='light dark'><title>{escape(title)}</title><style>{STYLE}</style>"
        # An empty icon of its own: without one a browser asks the server for it.
        "<link rel='icon' href='data:,'>"
    )
    return f"<!doctype html>\n<html lang='en'><head>{head}</head><body><main>{''.join(parts)}</main></body></html>\n"


def tiles(named: Mapping[str, str]) -> str:
    """Large figures with what they are; those without text are left out."""
    shown = (f"<div><b>{escape(text)}</b><span>{escape(name)}</span></div>" for name, text in named.items() if text)
    return f"<div class='tiles'>{''.join(shown)}</div>"


def figure(title: str, text: str, drawing: str) -> str:
    if not drawing:
        return ""
    caption = f"<p>{escape(text)}</p>" if text else ""
    return f"<figure><figcaption><h2>{escape(title)}</h2>{caption}</figcaption>{drawing}</figure>"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], *, look: str = "numbers") -> str:
    """`look` is a class of the page's style: numbers, words (a last column of text), or cards (on a phone one card per row)."""
    if not rows:
        return ""
    top = f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>" if any(head) else ""
    names = [f" data-name='{escape(name)}'" if look == "cards" else "" for name in head]
    body = "".join(f"<tr>{_cells(row, names)}</tr>" for row in rows)
    whole = f"<table class='{look}'>{top}{body}</table>"
    return f"<section><h2>{escape(title)}</h2><div class='scroll'>{whole}</div></section>"


def machine_line(machine: Mapping[str, object]) -> str:
    words = (machine.get("date"), f"{machine.get('cores')} cores", machine.get("processor"), machine.get("system"))
    return ", ".join(str(word) for word in words if word)


def _cells(row: Sequence[str], names: Sequence[str]) -> str:
    return "".join(f"<td{name}>{escape(cell)}</td>" for cell, name in zip(row, names, strict=True))
