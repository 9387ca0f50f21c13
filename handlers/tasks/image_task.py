"""The common part of the image tasks: options, decoding on the CPU, normalization, and calls of the model."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from msgspec import Meta

from penstock.errors import HandlerLoadError, InvalidInput
from penstock.handlers.array_handler import ArrayHandler
from penstock.handlers.calls import shrinking_calls
from penstock.handlers.contract import Context, Failure
from penstock.handlers.runtimes.contract import Port
from penstock.handlers.tasks.images import (
    MAX_PIXELS,
    PILLOW_MAX_PIXELS,
    Fit,
    Format,
    Frame,
    FrameTransform,
    Mode,
    Picture,
    framed,
)
from penstock.handlers.tasks.options import TaskOptions, check_output, output_of, read_options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]

Count = Annotated[int, Meta(ge=1)]
Layout = Literal["auto", "CHW", "HWC"]

_DEFAULT_SIDE = 224
# For smaller images, calls of a few images each cost more than the threads lose by waiting for each other (D45).
_MIN_PARALLEL_PIXELS = 96 * 96
# Mean and deviation of the training images of ImageNet networks, for values from 0 to 1 (torchvision.transforms).
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


class ImageOptions(TaskOptions, kw_only=True, frozen=True):
    """`size` is one side or (height, width); by default the model's own, else 224. `mean` and `std` are for values from 0 to 1;
    by default ImageNet's for RGB, and none for grey. `max_pixels` limits the size that an image's header may state.
    `parallel_calls`: image batches are split only if each image has at least 96 x 96 pixels and the model has no batch buckets.
    """

    # The bounds of `size` are checked below: msgspec 0.22 frees memory it still uses for a bounded int beside a fixed tuple.
    size: int | tuple[int, int] | None = None
    fit: Fit = "crop"
    crop_ratio: Annotated[float, Meta(gt=0, le=1)] = 0.875
    mode: Mode | Literal["auto"] = "auto"
    layout: Layout = "auto"
    mean: tuple[float, ...] | None = None
    std: tuple[Annotated[float, Meta(gt=0)], ...] | None = None
    formats: tuple[Format, ...] = ("JPEG", "PNG", "WEBP")
    max_pixels: Annotated[int, Meta(ge=1, le=PILLOW_MAX_PIXELS)] = MAX_PIXELS
    parallel_calls: bool = True

    def __post_init__(self) -> None:
        sides = (self.size,) if isinstance(self.size, int) else self.size or ()
        if any(side < 1 for side in sides):
            raise ValueError("option size must be at least 1")
        if not self.formats:
            raise ValueError(f"option formats is empty; name at least one of {', '.join(get_args(Format))}")


class Prepared(NamedTuple):
    """One image as the model takes it, and its place in the model's frame."""

    arrays: Arrays
    transform: FrameTransform


class Answered(NamedTuple):
    """The outputs for one image, without the batch axis."""

    outputs: Arrays
    transform: FrameTransform


class ImageTask(ArrayHandler):
    """A model with one image as input. Subclasses set `defaults` (their options) and implement `answer`."""

    # Raw bytes come before JSON, because a body without a Content-Type is the image file.
    accepts: ClassVar[tuple[str, ...] | None] = ("image/*", "application/octet-stream", "application/json", "text/plain")
    defaults: ClassVar[ImageOptions] = ImageOptions()
    task: ClassVar[str] = "the task"
    # The output to read if the model has several and the options name none. If it has no such output, the first.
    usual_output: ClassVar[str] = ""

    def initialize(self, context: Context, /) -> None:
        """Raises `HandlerLoadError` also for unknown options, and for options that contradict the model's input."""
        self.options = read_options(self.defaults, context.options, task=self.task)
        # Pillow warns of each damaged file with its own text, and Python would keep every such text for ever.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        super().initialize(context)
        check_output(self.runtime.outputs, self.options.output)
        self.port = chosen_port(self.runtime.inputs, self.options.input, task=self.task)
        self.channels_last = _channels_last(self.port, self.options.layout)
        self.frame = _frame(self.options, self.port, channels_last=self.channels_last)
        self._scale, self._shift = _normalization(self.options, self.frame.mode, self.port.dtype)
        self._pool = ThreadPoolExecutor(context.threads, "decode") if context.threads > 1 else None
        pixels = self.frame.width * self.frame.height
        parallel = self.options.parallel_calls and pixels >= _MIN_PARALLEL_PIXELS and not context.runtime.batch_buckets
        self.calls_at_once = self.open_parallel() if parallel else 1
        self.input_schema = Picture.schema()
        self.sample = blank(self.frame)

    def preprocess(self, inputs: list[Picture], /) -> list[Any]:
        # Threads help, because Pillow decodes and resizes without the interpreter's lock.
        if self._pool is None or len(inputs) == 1:
            prepared = list(map(self._prepared, inputs))
        else:
            prepared = list(self._pool.map(self._prepared, inputs))
        uploaded = self.upload([item if isinstance(item, Failure) else item.arrays for item in prepared])
        pairs = zip(prepared, uploaded, strict=True)
        return [item if isinstance(item, Failure) else item._replace(arrays=arrays) for item, arrays in pairs]

    def inference(self, batch: list[Any], /) -> list[Any]:
        items = [item.arrays for item in batch]
        calls = self._calls(items) if self.calls_at_once > 1 else []
        outputs = self.run_stacks(items, calls) if calls else super().inference(items)
        return [Answered(output, item.transform) for output, item in zip(outputs, batch, strict=True)]

    def _calls(self, items: list[Arrays]) -> list[list[int]]:
        """The places of the images of each parallel call; empty if one call runs them all."""
        groups = self._groups(items)
        return shrinking_calls(len(items), threads=self.calls_at_once) if len(groups) == 1 else groups

    def postprocess(self, outputs: list[Any], /) -> list[Any]:
        return [self.answer(answered.outputs, answered.transform) for answered in outputs]

    def answer(self, outputs: Arrays, transform: FrameTransform) -> Any:
        """The answer for one image."""
        raise NotImplementedError(f"{type(self).__name__} has no answer(self, outputs, transform) method")

    def output(self, outputs: Arrays) -> NDArray[Any]:
        """The output that the options name, else the usual one, else the model's first."""
        return output_of(outputs, self.options.output, self.usual_output)

    def _prepared(self, value: bytes) -> Prepared | Failure:
        try:
            pixels, transform = framed(value, self.frame)
        except InvalidInput as error:
            return Failure(error.message, error.kind)
        return Prepared({self.port.name: self._normalized(pixels)}, transform)

    def _normalized(self, pixels: NDArray[Any]) -> NDArray[Any]:
        import numpy as np

        values = pixels if self._scale is None else pixels * self._scale + self._shift
        ordered = values if self.channels_last else values.transpose(2, 0, 1)
        return np.ascontiguousarray(ordered, dtype=self.port.dtype)


def chosen_port(ports: Sequence[Port], wanted: str, *, task: str) -> Port:
    """The model's only input, whose name is `wanted` or not set. Raises `HandlerLoadError` unless it takes an image."""
    fitting = [port for port in ports if wanted in ("", port.name)]
    if len(ports) == 1 and fitting:
        _check_axes(fitting[0], task)
        return fitting[0]
    names = ", ".join(port.name for port in ports)
    raise HandlerLoadError(f"{task} fills one input, the model takes {names}; write a handler that fills them all")


def _check_axes(port: Port, task: str) -> None:
    if len(port.shape) != 3:
        shape = ", ".join("any" if side is None else str(side) for side in port.shape)
        raise HandlerLoadError(
            f"the model's input {port.name} takes [{shape}]; {task} fills it with an image, which has three axes"
        )


def blank(frame: Frame) -> bytes:
    """A black image file for the warm-up: of the frame's size, or one pixel if `max_pixels` forbids that size."""
    from PIL import Image

    buffer = io.BytesIO()
    form = "PNG" if "PNG" in frame.formats else frame.formats[0]
    size = (frame.width, frame.height) if frame.width * frame.height <= frame.max_pixels else (1, 1)
    Image.new(frame.mode, size).save(buffer, form)
    return buffer.getvalue()


def _channels_last(port: Port, layout: Layout) -> bool:
    shape = port.shape
    if layout == "auto":
        return shape[0] not in (1, 3, None) and shape[2] in (1, 3)
    return layout == "HWC"


def _frame(options: ImageOptions, port: Port, *, channels_last: bool) -> Frame:
    shape = port.shape
    depth, own = (shape[2], shape[:2]) if channels_last else (shape[0], shape[1:])
    wanted = (options.size, options.size) if isinstance(options.size, int) else options.size or (None, None)
    for side, wanted_side in zip(own, wanted, strict=True):
        if side and wanted_side and side != wanted_side:
            raise HandlerLoadError(f"option size asks for {wanted_side}, but the model's input {port.name} takes {side}")
    height, width = ((wanted_side or side or _DEFAULT_SIDE) for wanted_side, side in zip(wanted, own, strict=True))
    if depth not in (None, 1, 3) or (options.mode != "auto" and depth not in (None, len(options.mode))):
        raise HandlerLoadError(f"the model's input {port.name} has {depth} channels; mode {options.mode} cannot fill them")
    mode: Mode = options.mode if options.mode != "auto" else ("L" if depth == 1 else "RGB")
    return Frame(width, height, options.fit, options.crop_ratio, mode, options.formats, options.max_pixels)


def _normalization(options: ImageOptions, mode: Mode, dtype: str) -> tuple[Any, Any]:
    """Factor and summand per channel for values from 0 to 255; None if the model takes the values as they are."""
    import numpy as np

    if np.dtype(dtype).kind in "iu":
        if options.mean or options.std:
            raise HandlerLoadError(f"the model takes pixels as {dtype}, so mean and std do not apply; remove them")
        return None, None
    colored = mode == "RGB"
    mean = options.mean if options.mean is not None else _IMAGENET_MEAN if colored else (0.0,)
    std = options.std if options.std is not None else _IMAGENET_STD if colored else (1.0,)
    if {len(mean), len(std)} - {1, len(mode)}:
        raise HandlerLoadError(f"mean and std have {len(mean)} and {len(std)} values; an image in {mode} has {len(mode)}")
    scale = np.array([1 / (255 * value) for value in std], dtype=np.float32)
    return scale, np.array([-value for value in mean], dtype=np.float32) / np.array(std, dtype=np.float32)
