"""The project's Markdown pages, and the parts that tests check: prose, code blocks, headings, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")])
_FENCE = re.compile(r"^\s*(```+|~~~+)\s*(\w*)")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    language: str
    text: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _split(text: str) -> Iterator[tuple[str | None, int, str]]:
    """Yield each line with the language of its code block (None in prose) and its number; fences are left out."""
    fence, language = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line)
        if fence and found and found[1].startswith(fence) and not found[2]:
            fence = ""
        elif not fence and found:
            fence, language = found[1], found[2]
        else:
            yield (language if fence else None), number, line


def prose(page: Path) -> list[tuple[int, str]]:
    """Return the lines outside code blocks, with their numbers."""
    return [(number, line) for language, number, line in _split(page.read_text("utf-8")) if language is None]


def code_blocks(page: Path) -> list[CodeBlock]:
    blocks: list[tuple[int, CodeBlock]] = []
    for language, number, line in _split(page.read_text("utf-8")):
        if language is None:
            continue
        if blocks and blocks[-1][0] == number - 1:
            blocks[-1] = (number, CodeBlock(language, f"{blocks[-1][1].text}{line}\n"))
        else:
            blocks.append((number, CodeBlock(language, f"{line}\n")))
    return [block for _, block in blocks]


def anchors(page: Path) -> set[str]:
    """Return the names that links to headings of the page use, as code hosts generate them."""
    headings = [line.lstrip("#").strip() for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Return what the page links to, pictures included."""
    return _LINK.findall("\n".join(line for _, line in prose(page)))
