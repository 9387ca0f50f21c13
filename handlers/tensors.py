"""Named arrays at the two ends of a handler: tensors as numpy's arrays, and outputs as tensors.

An array of an output keeps its bytes, and a plain value gets a datatype that holds it.
"""

# D83: docs/design/protocols.md
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.outputs.media import without_head
from penstock.tensors.tensor import (
    TEXTS,
    Tensor,
    datatype_of,
    dtype_of,
    encode_tensors,
    tensor_of_plain,
    text_data,
    texts_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

WHOLE_TENSOR = "output"
# Returns the media type and bytes of a value, as any other caller would get it.
Encode = Callable[[Any], tuple[str, bytes]]


def arrays_of(tensors: Sequence[Tensor]) -> Any:
    """`{name: array}`; the array alone if it came without a name, as a file of numpy's does. Numbers are not copied."""
    if len(tensors) == 1 and not tensors[0].name:
        return array_of(tensors[0])
    return {tensor.name: array_of(tensor) for tensor in tensors}


def array_of(tensor: Tensor) -> NDArray[Any]:
    """The array, read-only where it is a view of the request. BYTES are texts; a bfloat16 becomes a float32."""
    import numpy as np

    if tensor.datatype == TEXTS:
        texts = np.empty(len(elements := texts_of(tensor)), dtype=object)
        texts[:] = [text.decode("utf-8", "replace") for text in elements]
        return texts.reshape(tensor.shape)
    if tensor.datatype == "BF16":
        halves = np.frombuffer(tensor.data, dtype="uint16").astype("uint32")
        return (halves << np.uint32(16)).view("float32").reshape(tensor.shape)
    return np.frombuffer(tensor.data, dtype=dtype_of(tensor.datatype)).reshape(tensor.shape)


def tensors_of_output(value: Any, encode: Encode) -> bytes:
    """One payload of `TENSORS_MEDIA`: a tensor per member of an object, or else one named `output`."""
    members = _members(value)
    if members is None:
        return encode_tensors([_tensor(WHOLE_TENSOR, value, encode)])
    return encode_tensors([_tensor(str(name), member, encode) for name, member in members.items()])


def _members(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, dict):
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(type(value), "__pydantic_validator__") and hasattr(value, "model_dump"):
        dumped: dict[Any, Any] = value.model_dump()
        return dumped
    return None


def _tensor(name: str, value: Any, encode: Encode) -> Tensor:
    tensor = _of_array(name, value) or tensor_of_plain(name, value)
    if tensor is not None:
        return tensor
    # A file, or a value that no array holds: its bytes are the one element.
    media, data = encode(value)
    return Tensor(name, TEXTS, (1,), text_data([data]), without_head(media))


def _of_array(name: str, value: Any) -> Tensor | None:
    """The tensor of an array of numpy, torch or jax."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if str(value.dtype) == "torch.bfloat16" else value.numpy()
    if not hasattr(value, "dtype") or not hasattr(value, "__array__"):
        return None
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        flat = array.ravel().tolist()
        return Tensor(name, TEXTS, array.shape, text_data(list(map(_utf8, flat)))) if _are_texts(flat) else None
    datatype = datatype_of(array.dtype.name)
    if not datatype:
        return None
    if datatype == "BF16":
        array = array.view("uint16")
    # No copy of an array that is contiguous. All machines that penstock runs on are little-endian.
    data = np.ascontiguousarray(array).reshape(-1).view("uint8").data
    return Tensor(name, datatype, array.shape, data)


def _are_texts(flat: list[Any]) -> bool:
    return all(isinstance(element, (str, bytes)) for element in flat)


def _utf8(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")
