"""What becomes of each setting of TorchServe: a list that leaves none out, with the reason where it is not simply honoured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_MOST_VALUE_CHARS = 60


class Parity(StrEnum):
    """`changed`: the setting has another effect than it had. `refused`: without it the model would answer wrongly, so the model
    is not loaded.
    """

    HONOURED = "honoured"
    CHANGED = "changed"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class SettingParity:
    """`ours` is the setting of penstock that took its place, `max_wait_s = 0.1`; empty if there is none."""

    key: str
    value: Any
    parity: Parity
    ours: str = ""
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"key": self.key, "value": self.value, "parity": self.parity.value, "ours": self.ours, "why": self.why}

    def __str__(self) -> str:
        """`ignored   maxRetryTimeoutInSec = 60: penstock never gives up loading a model`."""
        what = "; ".join(text for text in (self.ours, self.why) if text)
        return f"{self.parity.value:<9} {self.key} = {_shown(self.value)}{f': {what}' if what else ''}"


@dataclass(frozen=True, slots=True)
class TranslatedSettings:
    """`values` are settings of penstock by name, only those that the file sets; `report` has every key of the file."""

    values: Mapping[str, Any]
    report: Sequence[SettingParity]

    @property
    def refused(self) -> list[str]:
        """One sentence per setting that prevents the model from being served."""
        return [f"{one.key}: {one.why}" for one in self.report if one.parity is Parity.REFUSED]


def not_plain(report: Iterable[SettingParity]) -> list[SettingParity]:
    """The settings that are not simply honoured: the part of a report that needs attention."""
    return [one for one in report if one.parity is not Parity.HONOURED]


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MOST_VALUE_CHARS else f"{text[: _MOST_VALUE_CHARS - 3]}..."
