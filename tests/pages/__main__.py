"""Write the generated parts of the pages."""

from __future__ import annotations

from tests.pages import api_page, cli_page, doors_page, log_page, problems_page, settings_page

if __name__ == "__main__":
    for page in (settings_page, problems_page, log_page, api_page, cli_page):
        page.PAGE.write_text(page.rewritten(page.PAGE.read_text("utf-8")), "utf-8")
    for path in doors_page.pages():
        path.write_text(doors_page.rewritten(path), "utf-8")
