"""Files of numpy's (`.npy`) as tensors, and back, without numpy: only what the protocol's datatypes hold. Pure."""

from __future__ import annotations

import re

from penstock.errors import InvalidInput
from penstock.tensors.tensor import TEXTS, Tensor, check_tensor, datatype_of, dtype_of

_MAGIC = b"\x93NUMPY"
# The header of a file of numpy's is a dictionary in Python's syntax. A pattern reads it, so that nothing of it is evaluated.
_HEADER = re.compile(
    r"\{'descr': '(?P<order>[<>=|])(?P<kind>[a-zA-Z])(?P<bytes>\d{1,4})', 'fortran_order': (?P<fortran>True|False), "
    r"'shape': \((?P<shape>[\d, ]{0,400})\),? *\}\s*"
)
_LONGEST_HEADER = 4_096
_KINDS = {"b": "bool", "i": "int", "u": "uint", "f": "float"}
_LETTERS = {"bool": "|b1", "int8": "|i1", "uint8": "|u1"}
_ALIGNED = 64


def tensor_of_npy(data: bytes) -> Tensor:
    """The array as a tensor without a name; its data is a view. Raises `InvalidInput` for every other kind of file."""
    if data[: len(_MAGIC)] != _MAGIC or len(data) < 12:
        raise InvalidInput("the body is no file of numpy's: write one with numpy.save")
    width = 2 if data[6] == 1 else 4
    start = 8 + width
    length = int.from_bytes(data[8:start], "little")
    if length > _LONGEST_HEADER or start + length > len(data):
        raise InvalidInput(f"the header of the .npy file has {length} bytes, and at most {_LONGEST_HEADER} are read")
    header = _HEADER.fullmatch(data[start : start + length].decode("latin-1"))
    if header is None:
        raise InvalidInput("the .npy file holds no plain array of numbers or booleans")
    datatype = _datatype(header)
    shape = tuple(int(size) for size in header["shape"].replace(" ", "").split(",") if size)
    return check_tensor(Tensor("", datatype, shape, memoryview(data)[start + length :]))


def _datatype(header: re.Match[str]) -> str:
    size = int(header["bytes"])
    name = "bool" if header["kind"] == "b" else f"{_KINDS.get(header['kind'], '?')}{8 * size}"
    datatype = datatype_of(name)
    if not datatype or datatype == TEXTS:
        raise InvalidInput(f"the .npy file holds elements of type {header['kind']}{size}; send numbers or booleans")
    if header["order"] == ">" or header["fortran"] == "True":
        raise InvalidInput("the .npy file is big-endian or in Fortran's order; send numpy.ascontiguousarray(array)")
    return datatype


def npy_of_tensor(tensor: Tensor) -> bytes | None:
    """The file of a tensor of numbers; None for texts and bfloat16, which numpy's files cannot hold."""
    if tensor.datatype in (TEXTS, "BF16"):
        return None
    dtype = dtype_of(tensor.datatype)
    bits = dtype.lstrip("abcdefghijklmnopqrstuvwxyz")
    letter = _LETTERS.get(dtype) or f"<{dtype[0]}{int(bits) // 8}"
    shape = f"({', '.join(map(str, tensor.shape))}{',' if len(tensor.shape) == 1 else ''})"
    header = f"{{'descr': '{letter}', 'fortran_order': False, 'shape': {shape}, }}"
    padded = header + " " * (-(len(header) + 11) % _ALIGNED) + "\n"
    return b"".join([_MAGIC, b"\x01\x00", len(padded).to_bytes(2, "little"), padded.encode("ascii"), tensor.data])
