"""One slot's place: its device, its cores, and the environment variables that keep its child there."""

from __future__ import annotations

from dataclasses import dataclass

_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
    "TORCH_NUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Pin:
    """`cores` empty: there are too few for all threads, so the system's scheduler chooses. `device` is the worker's name for it
    (`cpu`, `cuda:3`), `uuid` that of the GPU or MIG slice. `node` is the NUMA node of all the cores; None: several.
    """

    cores: tuple[int, ...]
    threads: int
    device: str = "cpu"
    uuid: str = ""
    device_name: str = ""
    node: int | None = None
    placement: str = "dedicated"

    @property
    def handler_device(self) -> str:
        """The child's name for the device: only one is visible there."""
        return "cuda:0" if self.uuid else "cpu"

    def environment(self) -> dict[str, str]:
        """The child's variables, set before it starts: libraries read their number of threads, and CUDA its devices, only once.

        A slot on the CPU sees no GPU, because some libraries take memory on every device they see.
        """
        threads = dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        return {**threads, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self.uuid}


# The pin of a slot that computes nothing: the driver of a model without code waits nearly all of its time.
NO_LOCATION = Pin((), 0)
