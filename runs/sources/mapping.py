"""From the columns of a file to the model's inputs and the carried columns. Pure.

`columns` maps the model's fields to columns of the file; a single entry with an empty field makes the column's bare value the
input.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

import msgspec

from penstock.errors import InvalidInput
from penstock.runs.rows import RowError

RESERVED = "output"


@dataclass(frozen=True)
class Mapping:
    """`scalar`: the model does not take objects, so that the only column of a file becomes the bare input."""

    columns: dict[str, str] = field(default_factory=dict)
    carry: tuple[str, ...] = ()
    scalar: bool = False

    @property
    def whole(self) -> bool:
        """Whether a JSON value is the whole input, and no column is taken from it."""
        return not self.columns and not self.carry

    @cached_property
    def needed(self) -> list[str]:
        """The columns to read, each once; empty if the whole row is the input."""
        return list(dict.fromkeys([*self.columns.values(), *self.carry])) if self.columns else []

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[Any]:
        """The decoder of a JSON line; with a mapping it keeps only the needed columns and skips the rest."""
        if not self.columns:
            return msgspec.json.Decoder()
        names = {f"c{index}": column for index, column in enumerate(self.needed)}
        fields = [(name, Any, msgspec.UNSET) for name in names]
        return msgspec.json.Decoder(msgspec.defstruct("Line", fields, rename=names, gc=False))

    def of_objects(
        self, values: list[Any], bad: dict[int, RowError]
    ) -> tuple[list[Any], dict[str, list[Any]], dict[int, RowError]]:
        """Inputs, carried columns and bad rows from the values that `decoder` returned; those of `bad` rows are None."""
        if self.whole:
            return values, {}, bad
        if not self.columns:
            return values, {name: [_of_object(value, name) for value in values] for name in self.carry}, bad
        empty = self.decoder.decode(b"{}")
        objects = [empty if value is None else value for value in values] if bad else values
        read = {column: list(map(attrgetter(f"c{index}"), objects)) for index, column in enumerate(self.needed)}
        return self._split(read, bad)

    def _split(
        self, read: dict[str, list[Any]], bad: dict[int, RowError]
    ) -> tuple[list[Any], dict[str, list[Any]], dict[int, RowError]]:
        missing = dict(bad)
        for column in dict.fromkeys(self.columns.values()):
            for place in _places(read[column]):
                missing.setdefault(place, RowError("missing_column", f"the row has no column {column!r}"))
        inputs = self.of_columns({name: read[name] for name in self.columns.values()})
        carried = {name: _none_for_unset(read[name]) for name in self.carry}
        for place in missing:
            inputs[place] = None
        return inputs, carried, missing

    def of_columns(self, read: dict[str, list[Any]]) -> list[Any]:
        """The inputs from columns: a bare value per row, or an object per row."""
        if self.is_bare(list(read)):
            return list(read[self.columns.get("", next(iter(read)))])
        taken = self.columns or {name: name for name in read}
        fields = list(taken)
        return [dict(zip(fields, row, strict=True)) for row in zip(*(read[taken[each]] for each in fields), strict=True)]

    def is_bare(self, there: list[str]) -> bool:
        """Whether the input is the bare value of one column of a file with the columns `there`."""
        if self.columns:
            return "" in self.columns
        return self.scalar and len(there) == 1

    def inputs_from(self, there: list[str]) -> list[str]:
        """The columns, of those `there`, that inputs are made of."""
        return list(dict.fromkeys(self.columns.values())) if self.columns else there

    def check_there(self, there: list[str], name: str) -> None:
        """Raises `InvalidInput` for columns of the mapping that the file `name` lacks."""
        wanted = [*self.columns.values(), *self.carry]
        gone = list(dict.fromkeys(column for column in wanted if column not in there))
        if gone:
            raise InvalidInput(
                f"{name} has no column {', '.join(map(repr, gone))}", hint=f"its columns are {', '.join(map(repr, there))}"
            )


def build_mapping(columns: dict[str, str], carry: tuple[str, ...], scalar: bool) -> Mapping:
    """The mapping. Raises `InvalidInput` if it contradicts itself."""
    if "" in columns and len(columns) > 1:
        raise InvalidInput("the mapping asks both for one column's bare value and for fields from columns; choose one of them")
    if RESERVED in carry:
        raise InvalidInput(f"the column {RESERVED!r} cannot be carried: the model's output has that name")
    if len(set(carry)) != len(carry):
        raise InvalidInput("a column is carried twice")
    return Mapping(dict(columns), tuple(carry), scalar)


def _of_object(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _places(values: list[Any]) -> list[int]:
    # A column without gaps costs one scan in C: `in` compares by identity first.
    if msgspec.UNSET not in values:
        return []
    return [place for place, value in enumerate(values) if value is msgspec.UNSET]


def _none_for_unset(values: list[Any]) -> list[Any]:
    return [None if value is msgspec.UNSET else value for value in values] if msgspec.UNSET in values else values
