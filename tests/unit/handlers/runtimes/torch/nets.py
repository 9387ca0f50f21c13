"""Tiny seeded models, and functions that save them. Only tests that have imported torch import this module."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

# g++ spends most of the time of a small package on its wrapper: optimised, with line numbers. The rest tries out what the
# processor can do, which its flags say too.
_QUICK = {
    "compile_threads": 1,
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.enable_line_tables": False,
    "cpp.vec_isa_ok": True,
}


def quick_compiler() -> AbstractContextManager[None]:
    """Within the block torch compiles the same kernels without what only makes calls of them quicker, or explains them."""
    import torch._inductor.config as config

    known = config.get_config_copy()
    patched: AbstractContextManager[None] = config.patch({name: value for name, value in _QUICK.items() if name in known})
    return patched


class Convolutions(nn.Module):
    """Images [n, 3, 8, 8] -> {"logits": [n, 5], "features": [n, 4]}."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        features = torch.relu(self.norm(self.conv(pixels))).mean((2, 3))
        # Made inside, in torch's default dtype: what a mere cast of the weights trips over.
        features = features + torch.zeros(features.shape[0], 4)
        return {"logits": self.head(features), "features": features}


class Perceptron(nn.Module):
    """Rows [n, 4] -> [n, 3]."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


class Tied(nn.Module):
    """Rows [n, 4] -> [n, 4]; both layers share their weights, like the embedding and the head of a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.head.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.relu(self.first(x)))
        return out


class Reshaped(nn.Module):
    """Rows [n, 4] -> [n, 4]; the second layer's weights are a view of the first's."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 6))
        self.down = nn.Parameter(self.up.data.view(6, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.up) @ self.down


class Halved(nn.Module):
    """A parameter, and a view of its first half."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Parameter(torch.randn(4))
        self.part = nn.Parameter(self.whole.data[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.whole


class Embedder(nn.Module):
    """Token ids and mask, both [n, length] -> a pair of [n, 3] and [n]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 3)
        self.scale = torch.tensor([2.0, 1.0, 0.5])

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = mask.unsqueeze(-1).float()
        pooled = (self.norm(self.table(ids)) * weights).sum(1) / weights.sum(1)
        return self.head(pooled) * self.scale + torch.arange(3, device=ids.device), mask.sum(1)


class Pairs(nn.Module):
    """Rows [n, 2 * k], as k pairs -> their sum, [n, 2]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], -1, 2).sum(1)


class Picky(nn.Module):
    """Rows [n, k] -> doubled. The first number chooses an error: 1 the model's own, 2 one of torch, 3 out of memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] == 1).any()):
            raise ValueError("the first number is 1")
        if bool((x[:, 0] == 2).any()):
            return x @ torch.ones(99, 99)
        if bool((x[:, 0] == 3).any()):
            return x + torch.zeros(100_000_000_000_000_000)[0]
        return x * 2


class Colour(nn.Module):
    """Images [n, 3, h, w] -> a layer on the mean of each channel, [n, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(pixels.float().mean((2, 3)))
        return out


def seeded(kind: type[nn.Module], *args: Any) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args).eval()


def export(module: nn.Module, args: tuple[Any, ...], shapes: Any, path: Path) -> Path:
    """Save a model with torch.export; `shapes` are its dynamic_shapes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.*", FutureWarning)
        torch.export.save(torch.export.export(module, args, dynamic_shapes=shapes), path)
    return path


def batch_axis(low: int = 1, high: int = 64) -> Any:
    return torch.export.Dim("batch", min=low, max=high)


def save_convolutions(path: Path) -> nn.Module:
    net = seeded(Convolutions)
    export(net, (torch.randn(3, 3, 8, 8),), {"pixels": {0: batch_axis()}}, path)
    return net


def save_perceptron(path: Path, shapes: Any = None, *, rows: int = 2) -> nn.Module:
    net = seeded(Perceptron)
    export(net, (torch.randn(rows, 4),), shapes, path)
    return net


def save_embedder(path: Path) -> nn.Module:
    net = seeded(Embedder)
    free = {0: batch_axis(), 1: torch.export.Dim("length", min=3, max=16)}
    args = (torch.randint(1, 50, (2, 5)), torch.ones(2, 5, dtype=torch.int64))
    export(net, args, {"ids": free, "mask": free}, path)
    return net


def save_script(net: nn.Module, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        torch.jit.script(net).save(str(path))
    return path
