"""All cures that the pages count on."""

from __future__ import annotations

from tests.cures.attacks import ATTACKS
from tests.cures.faults import FAULTS

CURES = (*ATTACKS, *FAULTS)
