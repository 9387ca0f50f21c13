"""Faults of today that the suite finds, by door and test. Each is a strict xfail: who mends one takes its line away."""

from __future__ import annotations

from collections.abc import Mapping

KNOWN: Mapping[tuple[str, str], str] = {}
