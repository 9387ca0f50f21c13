"""The report of `penstock tune` in a real browser without a network: on a desktop, a phone and paper, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from penstock.tune.report.page import write_report
from tests.acceptance.browser import browsing, watched
from tests.unit.tune.made import result

# The lowest contrast (WCAG 2) between a text and its background; decorations do not count.
_CONTRAST = """() => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = getComputedStyle(node).backgroundColor;
      if (!found.endsWith(', 0)')) return found;
    }
  };
  const ratios = [...document.querySelectorAll('h1, h2, p, td, th, .tiles b, .tiles span, .legend li')].map((node) => {
    const [one, other] = [light(getComputedStyle(node).color), light(ground(node))].sort((a, b) => a - b);
    return (other + 0.05) / (one + 0.05);
  });
  return Math.min(...ratios);
}"""


# The number of pixels by which the widest table exceeds its visible part, and the size of the smallest text.
_CUT_OFF = "Math.max(...[...document.querySelectorAll('.scroll')].map(each => each.scrollWidth - each.clientWidth))"
_SMALLEST = (
    "Math.min(...[...document.querySelectorAll('td, th, p, li')].map(each => parseFloat(getComputedStyle(each).fontSize)))"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="module")
def page_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("tune") / "report.html"
    write_report(result(), path)
    assert path.stat().st_size < 1_000_000
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_the_page_is_legible_and_asks_for_nothing(
    browser: Browser, page_url: str, width: int, height: int, scheme: Any
) -> None:
    with watched(browser, page_url, viewport={"width": width, "height": height}, color_scheme=scheme, offline=True) as watch:
        watch.page.goto(page_url)
        assert watch.page.evaluate("document.documentElement.scrollWidth") <= width
        assert watch.page.evaluate(_CUT_OFF) <= 1
        assert watch.page.evaluate(_CONTRAST) >= 4.0
        assert watch.page.evaluate(_SMALLEST) >= 11.0
        assert watch.page.locator("svg").count() >= 6


def test_on_paper_it_is_a_few_pages_on_white(browser: Browser, page_url: str) -> None:
    # The size of A4 without margins, in CSS pixels.
    with watched(browser, page_url, viewport={"width": 718, "height": 1047}, color_scheme="dark", offline=True) as watch:
        watch.page.goto(page_url)
        watch.page.emulate_media(media="print")
        assert watch.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert watch.page.evaluate(_CUT_OFF) <= 1
        pages = watch.page.pdf(format="A4", print_background=True).count(b"/Type /Page\n")
        assert 1 <= pages <= 8
