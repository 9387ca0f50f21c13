"""The project's Markdown pages, and the parts that tests check: prose, code blocks, headings, links."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*/README.md")])
_FENCE = re.compile(r"^\s*(```+|~~~+)\s*(\w*)")
_HIDDEN = re.compile(r"run(?: (?P<language>python))?\n(?P<text>.*)", re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK = re.compile(
    r"^ *(?P<fence>```+|~~~+) *(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^ *(?P=fence) *$|^ *<!--(?P<comment>.*?)-->",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """A fenced block without the indentation that a list gives it, and the comment that stands right before it.

    A comment whose first line is `run` or `run python` is a block of bash or Python, too: readers do not see it.
    """

    language: str
    text: str
    line: int = 0
    comment: str = ""
    is_hidden: bool = False


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page)


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
    """Return the lines outside code blocks, hidden ones included, with their numbers."""
    text = page.read_text("utf-8")
    hidden = {block.line + at for block in blocks_of(text) if block.is_hidden for at in range(block.text.count("\n"))}
    return [(number, line) for language, number, line in _split(text) if language is None and number not in hidden]


def code_blocks(page: Path) -> list[CodeBlock]:
    """Return the fenced blocks of the page."""
    return [block for block in blocks_of(page.read_text("utf-8")) if not block.is_hidden]


def blocks_of(text: str) -> Iterator[CodeBlock]:
    """Yield the blocks of a page in their order, hidden ones included."""
    note = None
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        if found["comment"] is None:
            is_noted = note is not None and not text[note.end() : found.start()].strip()
            comment = note["comment"].strip() if note is not None and is_noted else ""
            yield CodeBlock(found["language"], textwrap.dedent(found["text"]), line, comment)
        elif hidden := _HIDDEN.fullmatch(found["comment"].strip()):
            yield CodeBlock(hidden["language"] or "bash", hidden["text"] + "\n", line, is_hidden=True)
        else:
            note = found


def anchors(page: Path) -> set[str]:
    """Return the names that links to headings of the page use, as code hosts generate them."""
    headings = [line.lstrip("#").strip() for _, line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Return what the page links to, pictures included."""
    return _LINK.findall("\n".join(line for _, line in prose(page)))
