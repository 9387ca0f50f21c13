"""Hooks of MkDocs, by which the pages read the same on the site as on a code host.

- `<!-- api: penstock.Client -->` becomes the signature, docstring and members of that name. They take the place of the
  paragraph before it, which is what a code host shows.
- Headings get the anchors that code hosts give them.
- The search ranks what answers a question before what explains a decision.
- Links that leave docs/ work in a checkout but have no page on the site. `[the chart](../../compose/helm/values.yaml)`
  becomes a link into the repository if `repo_url` is set in mkdocs.yml, and else its text with the path behind it. A link
  to a path that does not exist stays as it is, so that the strict build refuses it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pymdownx.slugs import slugify

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)\s#]+)(#[^)\s]*)?\)")
API = re.compile(r"^(?!#)\S[^\n]*\n(?:\S[^\n]*\n)*\n<!-- api: ([\w.]+) -->$", re.MULTILINE)
# How much a page counts in the search, by the beginning of its path; 1 unless said.
WEIGHTS = {"how-to/": 4.0, "start/": 4.0, "reference/settings": 6.0, "production/": 1.5, "design/": 0.3, "measurements/": 0.3}
BLOCK_OF_CODE = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)


def on_config(config: Any) -> Any:
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    path = page.file.src_uri
    weight = next((weight for beginning, weight in WEIGHTS.items() if path.startswith(beginning)), 1.0)
    page.meta.setdefault("search", {"boost": weight})
    markdown = API.sub(r"::: \1", markdown)
    here, docs = Path(page.file.abs_src_path), Path(config.docs_dir)
    parts = BLOCK_OF_CODE.split(markdown)
    # Every second part is a block of code.
    parts[::2] = [rewrite_links(part, here=here, docs=docs, repository=config.repo_url or "") for part in parts[::2]]
    return "".join(parts)


def rewrite_links(text: str, *, here: Path, docs: Path, repository: str) -> str:
    """Return `text` with the links that lead from the page `here` to files beside `docs` rewritten."""

    def rewritten(link: re.Match[str]) -> str:
        target, docs_dir = (here.parent / link[2]).resolve(), docs.resolve()
        if target.is_relative_to(docs_dir) or not target.is_relative_to(docs_dir.parent) or not target.exists():
            return link[0]
        path = target.relative_to(docs_dir.parent).as_posix()
        if repository:
            return f"[{link[1]}]({repository.rstrip('/')}/blob/main/{path}{link[3] or ''})"
        return link[1] if path in link[1] else f"{link[1]} (`{path}`)"

    return LINK.sub(rewritten, text)
