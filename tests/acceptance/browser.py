"""A real headless Chromium for tests of pages. The tests record the hosts that a page contacts and the errors it logs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PATIENCE_MS = 30_000
# Chromium cannot use its sandbox as root in a container. The tests open only pages of penstock.
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]

# For every visible text: the element, and its contrast (WCAG 2) with the nearest background that is not transparent.
CONTRAST = """selector => {
  const clear = (color) => /, 0\\)$|transparent/.test(color);
  const over = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if (!clear(color)) return color;
    }
    return 'rgb(255, 255, 255)';
  };
  const linear = (value) => (value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4);
  const light = (color) => {
    const [r, g, b] = color.match(/[\\d.]+/g).map((part) => linear(part / 255));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const contrast = (node) => {
    const [more, less] = [light(getComputedStyle(node).color), light(over(node))].sort((x, y) => y - x);
    return [node.className || node.tagName, (more + .05) / (less + .05)];
  };
  const shown = (node) => node.checkVisibility() && node.textContent.trim();
  return [...document.querySelectorAll(selector)].filter(shown).map(contrast);
}"""


def find_browser() -> str:
    """Path of an installed Chromium. Without one the test is skipped, or fails if PENSTOCK_TEST_BROWSER=required."""
    found = next((path for path in map(shutil.which, _NAMES) if path), None)
    if found is None and os.environ.get("PENSTOCK_TEST_BROWSER") == "required":
        pytest.fail("no Chromium on the path, and PENSTOCK_TEST_BROWSER=required")
    if found is None:
        pytest.skip("no Chromium on the path: install the package `chromium` to test the dashboard")
    return found


@contextmanager
def browsing() -> Iterator[Browser]:
    path = find_browser()
    expect.set_options(timeout=_PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A page, the hosts and paths that the page requested, and the errors that the page logged."""

    page: Page
    hosts: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    def asked(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "about"):
            self.hosts.add(parts.netloc)
            self.paths.add(parts.path)

    def printed(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def check(self, base_url: str) -> None:
        """The page has contacted only the host of `base_url` and logged no error. What it did until now is forgotten."""
        errors, hosts = self.errors, self.hosts
        self.errors, self.hosts, self.paths = [], set(), set()
        assert errors == []
        assert hosts <= {urlsplit(base_url).netloc}


@contextmanager
def watched(browser: Browser, base_url: str, **context: Any) -> Iterator[Watched]:
    """A page in a new browser context. At the end the page must have contacted only its own host and logged no error."""
    opened = browser.new_context(base_url=base_url, **context)
    opened.set_default_timeout(_PATIENCE_MS)
    watch = Watched(opened.new_page())
    watch.page.on("request", watch.asked)
    watch.page.on("console", watch.printed)
    watch.page.on("pageerror", lambda error: watch.errors.append(str(error)))
    watch.page.on("dialog", lambda dialog: watch.errors.append(f"a script ran: {dialog.message}"))
    try:
        yield watch
        watch.check(base_url)
    finally:
        opened.close()
