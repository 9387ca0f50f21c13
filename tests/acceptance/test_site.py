"""The built site in a real browser: it asks no other host, and its search finds the page for each question that people ask."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser, Page

from tests.acceptance.browser import browsing, watched
from tests.markdown import ROOT

QUESTION = re.compile(r"^\| ([^|]+\?) \| \[[^\]]+\]\(([^)#]+)\.md", re.MULTILINE)
QUESTIONS = QUESTION.findall((ROOT / "docs" / "index.md").read_text("utf-8"))
# Nobody types these into a search; it would look for every word that begins like them.
SMALL = re.compile(r"a|all|and|are|do|does|give|how|i|if|in|is|it|its|my|of|see|take|the|their|to|use|what|when|where|why|with")
# A reader looks at the first results; each is a page, with its sections below it.
LOOKED_AT = 3


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="module")
def home(browser: Browser, site: str) -> Iterator[Page]:
    with watched(browser, site) as watch:
        watch.page.goto("/index.html")
        yield watch.page


def found(page: Page, words: str) -> list[str]:
    """The pages that the site's search lists first, as paths below docs/ without their ending."""
    # The address of a search, as a link to it has; a new page has no results of the search before.
    page.goto(f"/index.html?q={quote(words)}")
    page.locator(".md-search-result__item").first.wait_for(state="attached")
    links = page.locator(".md-search-result__item > a.md-search-result__link").all()[:LOOKED_AT]
    return [urlsplit(str(link.evaluate("link => link.href"))).path.strip("/").removesuffix(".html") for link in links]


def test_ten_questions_have_a_page_that_the_home_page_links() -> None:
    assert len(QUESTIONS) == 10


@pytest.mark.parametrize(("question", "target"), QUESTIONS, ids=[target for _, target in QUESTIONS])
def test_the_search_finds_the_page_of_a_question_among_its_first_results(home: Page, question: str, target: str) -> None:
    words = [word for word in question.rstrip("?").split() if not SMALL.fullmatch(word.lower())]
    assert target in found(home, " ".join(words))


def test_the_code_of_a_problem_leads_to_the_troubleshooting_page(home: Page) -> None:
    assert "production/troubleshooting" in found(home, "Too many requests rate_limited")


def test_a_variable_of_the_environment_leads_to_the_settings(home: Page) -> None:
    assert "reference/settings" in found(home, "PENSTOCK_GATEWAY__PORT")
