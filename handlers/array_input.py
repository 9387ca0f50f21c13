"""Reads one input of a model file from plain values into the model's element type, or refuses it and says why. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import InvalidInput
from penstock.handlers.runtimes.contract import Port
from penstock.inputs.input_shape import misfit, ragged

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Up to this limit every whole number has its own double. Above it, two neighbours may have become equal when they were read.
_LARGEST_EXACT = 2**53 - 1
_KIND_WORDS = {
    "b": "true or false",
    "i": "whole numbers",
    "u": "whole numbers",
    "f": "numbers",
    "U": "text",
    "S": "bytes",
    "O": "null, an object or a number beyond 64 bits",
}


def read_array(port: Port, value: Any) -> NDArray[Any]:
    """The value in the model's element type. Raises `InvalidInput`: no value is rounded, wrapped around or parsed from text."""
    given = (_texts if port.dtype == "object" else _numbers)(port, value)
    if not port.fits(given.shape):
        raise InvalidInput(misfit(port.name, given.shape, port.limits()))
    return _cast(port, given)


def _texts(port: Port, value: Any) -> NDArray[Any]:
    """An array of Python strings. numpy's own text is not used, because it has three faults.

    It has a fixed width, so that one long text makes all others as long in memory; it drops the NULs at the end of a text;
    and it makes text of the numbers that stand beside a text.
    """
    import numpy as np

    made = np.asarray(value, dtype=object)
    for element in made.flat:
        if isinstance(element, list):
            raise InvalidInput(ragged(port.name))
        if not isinstance(element, str):
            raise InvalidInput(f"{port.name} cannot be read as {port.dtype}: it holds {element!r:.80}, which is no text")
    return made


def _numbers(port: Port, value: Any) -> NDArray[Any]:
    import numpy as np

    try:
        given = _with_digits(value, np.asarray(value), port.dtype)
    except ValueError as error:
        raise InvalidInput(ragged(port.name)) from error
    # An empty list has no element type. Whether it may be empty is checked with its shape.
    wrong = _why_unreadable(given, port.dtype) if given.size else ""
    if wrong:
        raise InvalidInput(f"{port.name} cannot be read as {port.dtype}: it holds {wrong}")
    return given


def _with_digits(value: Any, given: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The numbers with all their digits: numpy reads a list that spans 2**63 as doubles, although a uint64 could hold it."""
    import numpy as np

    if dtype != "uint64" or given.dtype.kind != "f" or not given.size or given.max() < 2**63:
        return given
    numbers = np.asarray(value, dtype=object)
    fits = all(isinstance(number, int) and 0 <= number < 2**64 for number in numbers.flat)
    return numbers.astype(dtype) if fits else given


def _why_unreadable(given: NDArray[Any], dtype: str) -> str:
    """The reason why `dtype` cannot hold the array; empty if it can."""
    import numpy as np

    kind = np.dtype(dtype).kind
    if given.dtype.kind not in ("b" if kind == "b" else "biuf"):
        return _KIND_WORDS.get(given.dtype.kind, f"values of type {given.dtype}")
    return _why_not_whole(given, dtype) if kind in "iu" else ""


def _why_not_whole(given: NDArray[Any], dtype: str) -> str:
    """As `_why_unreadable`, for whole numbers. 1.0 is one, as JSON Schema's `integer` has it."""
    import numpy as np

    if given.dtype.kind == "f":
        broken = given[~(np.isfinite(given) & (given == np.floor(given)))]
        if broken.size:
            return f"{broken.flat[0]}, which is no whole number"
    # Compared as Python's numbers: numpy would round the limits of 64 bits to doubles.
    low, high = int(given.min()), int(given.max())
    limits = np.iinfo(dtype)
    if low < limits.min or high > limits.max:
        return f"{low if low < limits.min else high}, which is outside {limits.min} to {limits.max}"
    if given.dtype.kind == "f" and max(-low, high) > _LARGEST_EXACT:
        return f"whole numbers beyond {_LARGEST_EXACT} written as fractions, which may have lost digits; leave out .0 and e"
    return ""


def _cast(port: Port, given: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    # On overflow numpy warns and writes infinity, which is looked for below.
    with np.errstate(over="ignore"):
        made = given.astype(port.dtype, copy=False)
    if made.dtype.kind == "f" and np.isinf(made).any():
        over = given[np.isinf(made) & np.isfinite(given)]
        if over.size:
            limit = np.finfo(port.dtype).max
            raise InvalidInput(
                f"{port.name} cannot be read as {port.dtype}: it holds {over.flat[0]}, which is outside {-limit} to {limit}"
            )
    return made
