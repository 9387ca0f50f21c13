"""Which parts of a handler's output are files, and how they are written. The handler brings libraries for images and arrays."""

from __future__ import annotations

import io
import uuid
from typing import Any

from penstock.errors import HandlerContractError
from penstock.outputs.bundle import encode_bundle, reference
from penstock.outputs.media import Media

_PNG = "image/png"
_NPY = "application/x-npy"
_BYTES_LIKE = (bytes, bytearray, memoryview)


class OutputFiles:
    """The files of one output, in the order in which they are met while its JSON is written."""

    def __init__(self) -> None:
        # No file and no text contains it by chance, so it can stand in the JSON, and between the parts of a form.
        self._token = uuid.uuid4().hex
        self._files: list[Media] = []

    def reference(self, value: Any) -> dict[str, Any]:
        """What stands in the JSON for this file."""
        self._files.append(file_of(value))
        return reference(len(self._files) - 1, self._files[-1], self._token)

    def bundle(self, json: bytes) -> bytes:
        return encode_bundle(json, self._files, self._token)


def is_file_class(kind: type) -> bool:
    """Whether values of this class are files by themselves: `Media`, and Pillow's images."""
    return issubclass(kind, Media) or any(base.__module__ == "PIL.Image" for base in kind.__mro__)


def file_of(value: Any) -> Media:
    """A value of such a class as a file; an image as PNG. Raises `HandlerContractError`."""
    return value if isinstance(value, Media) else _image(value, _PNG)


def file_as(value: Any, content_type: str) -> Media:
    """The output of a model whose return annotation names this media type. Raises `HandlerContractError`."""
    if isinstance(value, Media):
        return value
    if isinstance(value, _BYTES_LIKE):
        return Media(value, content_type)
    if isinstance(value, str) and content_type.startswith("text/"):
        return Media(value.encode(), content_type if "charset" in content_type else f"{content_type}; charset=utf-8")
    if is_file_class(type(value)):
        return _image(value, content_type)
    if hasattr(value, "__array__"):
        return _array(value, content_type)
    raise HandlerContractError(f"an output of type {type(value).__name__} cannot be written as {content_type}")


def _array(value: Any, content_type: str) -> Media:
    import numpy as np

    array, buffer = np.asarray(value), io.BytesIO()
    try:
        if content_type != _NPY:
            from PIL import Image

            return _image(Image.fromarray(array), content_type)
        np.save(buffer, array, allow_pickle=False)
    except (TypeError, ValueError) as error:
        raise HandlerContractError(f"an array of {array.dtype} cannot be written as {content_type}: {error}") from error
    return Media(buffer.getvalue(), content_type)


def _image(image: Any, content_type: str) -> Media:
    from PIL import Image

    Image.init()
    form = next((form for form, media in Image.MIME.items() if media == content_type and form in Image.SAVE), None)
    if form is None:
        raise HandlerContractError(f"Pillow writes no images of the type {content_type}")
    buffer = io.BytesIO()
    try:
        image.save(buffer, form)
    except (OSError, ValueError, KeyError) as error:
        hint = "convert it before, as in image.convert('RGB')"
        raise HandlerContractError(f"an image of mode {image.mode} cannot be written as {form}: {error}; {hint}") from error
    return Media(buffer.getvalue(), content_type)
