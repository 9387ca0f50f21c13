"""The pages whose blocks run."""

from __future__ import annotations

from tests.markdown import PAGES, ROOT, code_blocks

BLOCK_PAGES = [page for page in PAGES if (page == ROOT / "README.md" or ROOT / "docs" in page.parents) and code_blocks(page)]
