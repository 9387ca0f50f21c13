"""The part of CUDA that an engine needs without torch: a device, a stream, device memory and pinned host memory.

It uses NVIDIA's bindings (cuda-bindings, part of the TensorRT extras), which take 31 MB; torch would take gigabytes.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import HandlerLoadError
from penstock.handlers.runtimes.engine_cache import GpuTarget

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]


class Device(Protocol):
    """A device's memory, and work in the order of one stream. Addresses are integers."""

    stream: int

    def allocate(self, size_bytes: int, /) -> int: ...
    def free(self, address: int, /) -> None: ...
    def pin(self, size_bytes: int, /) -> Bytes: ...
    def unpin(self, host: Bytes, /) -> None: ...
    def to_device(self, address: int, host: Bytes, size_bytes: int, /) -> None: ...
    def to_host(self, host: Bytes, address: int, size_bytes: int, /) -> None: ...
    def synchronize(self) -> None: ...


class CudaDevice:
    """GPU `index` of those that this process sees, with its own stream. Use it in one thread: CUDA's current device is per
    thread.
    """

    def __init__(self, runtime: Any, index: int) -> None:
        self._runtime = runtime
        self._index = index
        self.stream = 0

    def start(self) -> None:
        self._ask(self._runtime.cudaSetDevice(self._index))
        # The default stream would wait for every other stream of the process.
        self.stream = int(self._ask(self._runtime.cudaStreamCreateWithFlags(self._runtime.cudaStreamNonBlocking)))

    def allocate(self, size_bytes: int, /) -> int:
        return int(self._ask(self._runtime.cudaMalloc(size_bytes)))

    def free(self, address: int, /) -> None:
        self._ask(self._runtime.cudaFree(address))

    def pin(self, size_bytes: int, /) -> Bytes:
        import numpy as np

        address = int(self._ask(self._runtime.cudaMallocHost(size_bytes)))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))

    def unpin(self, host: Bytes, /) -> None:
        self._ask(self._runtime.cudaFreeHost(host.ctypes.data))

    def to_device(self, address: int, host: Bytes, size_bytes: int, /) -> None:
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._ask(self._runtime.cudaMemcpyAsync(address, host.ctypes.data, size_bytes, kind, self.stream))

    def to_host(self, host: Bytes, address: int, size_bytes: int, /) -> None:
        kind = self._runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._ask(self._runtime.cudaMemcpyAsync(host.ctypes.data, address, size_bytes, kind, self.stream))

    def synchronize(self) -> None:
        self._ask(self._runtime.cudaStreamSynchronize(self.stream))

    def _ask(self, answer: tuple[Any, ...]) -> Any:
        error, *values = answer
        if int(error):
            text = self._runtime.cudaGetErrorString(error)[1].decode()
            # By this wording the runner recognises that a smaller batch may fit.
            raise RuntimeError(f"CUDA: {text} ({error.name})")
        return values[0] if values else None


class Buffer:
    """Device memory and pinned host memory of the same size; both grow to the largest size that was needed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._size_bytes = 0
        self.address = 0
        self._host: Bytes | None = None

    def reserve(self, size_bytes: int) -> None:
        """Grow to at least `size` bytes; growing loses the content."""
        # An engine refuses a null address, so an empty array gets memory too.
        size_bytes = max(size_bytes, 1)
        if size_bytes <= self._size_bytes:
            return
        if self._host is not None:
            self._device.free(self.address)
            self._device.unpin(self._host)
            self._host, self._size_bytes = None, 0
        self.address, self._host = self._device.allocate(size_bytes), self._device.pin(size_bytes)
        self._size_bytes = size_bytes

    def send(self, array: NDArray[Any]) -> None:
        """Start the copy of the array's bytes to the device."""
        import numpy as np

        self.reserve(array.nbytes)
        assert self._host is not None
        self._host[: array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._device.to_device(self.address, self._host, array.nbytes)

    def fetch(self, size_bytes: int) -> None:
        assert self._host is not None
        self._device.to_host(self._host, self.address, size_bytes)

    def read(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A copy of what `fetch` brought; call it once the stream is done. The next batch reuses this memory."""
        assert self._host is not None
        size_bytes = dtype.itemsize * _product(shape)
        return self._host[:size_bytes].copy().view(dtype).reshape(shape)


def open_device(index: int) -> CudaDevice:
    """Raises `HandlerLoadError` without the bindings, a driver, or such a GPU."""
    device = CudaDevice(_found(index), index)
    device.start()
    return device


def gpu(index: int) -> GpuTarget:
    """The kind of GPU `index`; raises the errors of `open_device`."""
    runtime = _found(index)
    properties = runtime.cudaGetDeviceProperties(index)[1]
    driver = runtime.cudaDriverGetVersion()[1]
    name = properties.name.decode() if isinstance(properties.name, bytes) else str(properties.name)
    return GpuTarget(name.rstrip("\0"), f"{properties.major}.{properties.minor}", str(driver))


def _found(index: int) -> Any:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        raise HandlerLoadError(
            "TensorRT engines need cuda-bindings, which is not installed; run: pip install 'cuda-bindings>=12.9'"
        ) from error
    status, count = runtime.cudaGetDeviceCount()
    if int(status):
        text = runtime.cudaGetErrorString(status)[1].decode()
        raise HandlerLoadError(f'there is no GPU to run on: {text}; check it with nvidia-smi, or set device = "cpu"')
    if index >= count:
        raise HandlerLoadError(f"there is no GPU {index}: this process sees {count}, counted from 0; correct `device`")
    return runtime


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
