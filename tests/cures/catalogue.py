"""All cures that the pages count on."""

from __future__ import annotations

from tests.cures.attacks import ATTACKS

CURES = ATTACKS
