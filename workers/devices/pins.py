"""One slot's place: its device, its cores, and the environment that keeps a child there."""

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
    """`cores` empty: more threads are wanted than there are cores, the scheduler decides. `device` is as the worker sees it
    (`cpu`, `cuda:3`); `uuid` is the GPU's or the MIG slice's. `node` is the NUMA node that holds all the cores, None: several.
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
        """As the child sees it: only one device is visible there."""
        return "cuda:0" if self.uuid else "cpu"

    def environment(self) -> dict[str, str]:
        """For the child, before it imports anything: these libraries read their number of threads, and CUDA its devices, once.

        Empty for a slot on the CPU: a library that opens every device it sees would take memory on each.
        """
        threads = dict.fromkeys(_THREAD_VARIABLES, str(self.threads))
        return {**threads, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self.uuid}
