from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import InvalidInput
from penstock.handlers.runtimes.contract import Port
from penstock.handlers.runtimes.symbols import Symbol, check_symbols


def port(name: str, *symbols: Symbol) -> Port:
    return Port(name, "float32", (None,) * len(symbols), symbols=dict(enumerate(symbols)))


def check(ports: list[Port], *shapes: tuple[int, ...]) -> None:
    check_symbols(ports, {port.name: np.zeros(shape) for port, shape in zip(ports, shapes, strict=True)})


@pytest.mark.parametrize(
    ("symbol", "size", "value", "rule"),
    [
        (Symbol("n"), 3, 3, "n"),
        (Symbol("n", 2), 6, 3, "2 * n"),
        (Symbol("n", 2), 5, None, "2 * n"),
        (Symbol("n", 1, 1), 4, 3, "n + 1"),
        (Symbol("n", 3, -1), 5, 2, "3 * n - 1"),
    ],
)
def test_a_dimension_tells_what_its_symbol_is(symbol: Symbol, size: int, value: int | None, rule: str) -> None:
    assert symbol.solved(size) == value
    assert value is None or symbol.size(value) == size
    assert str(symbol) == rule


def test_dimensions_of_one_symbol_must_be_of_one_size() -> None:
    ports = [port("ids", Symbol("length")), port("mask", Symbol("length"))]
    check(ports, (3,), (3,))
    with pytest.raises(InvalidInput, match="axis 0 of mask is 1, and must be 3 where axis 0 of ids is 3"):
        check(ports, (3,), (1,))


def test_dimensions_computed_from_a_symbol_follow_it_also_within_one_input() -> None:
    ports = [port("x", Symbol("n"), Symbol("n", 2, 1)), port("y", Symbol("other"))]
    check(ports, (3, 7), (9,))
    with pytest.raises(InvalidInput, match="axis 1 of x is 5, and must be 7 where axis 0 of x is 3"):
        check(ports, (3, 5), (9,))
    with pytest.raises(InvalidInput, match=r"axis 1 of x is 6, and the model takes only 2 \* n \+ 1 there"):
        check(ports, (3, 6), (9,))
