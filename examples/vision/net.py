"""A residual network of 18 layers, shaped as in arXiv:1512.03385 (table 1), in plain torch.

Its weights come from a seed and were never trained. Its answers mean nothing, but it costs as much as a ResNet-18 and is the
same on every machine, so that runtimes can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

CLASSES = 1000
WIDTHS = (64, 128, 256, 512)


class Block(nn.Module):
    """Two convolutions and a shortcut around them."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.around = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(inner)) + self.around(x))


class ResNet18(nn.Module):
    """Images float32 [batch, 3, height, width] to scores [batch, classes]. Narrow `widths` make a small network for tests."""

    def __init__(self, widths: Sequence[int] = WIDTHS, classes: int = CLASSES) -> None:
        super().__init__()
        stem = nn.Conv2d(3, widths[0], 7, 2, padding=3, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(widths[0]), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        blocks: list[nn.Module] = []
        for before, width in zip([widths[0], *widths], widths, strict=False):
            blocks += [Block(before, width, 1 if width == widths[0] else 2), Block(width, width, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(self.stem(image)).mean(dim=(2, 3)))
        return scores


def seeded(seed: int = 0, *, widths: Sequence[int] = WIDTHS, classes: int = CLASSES) -> ResNet18:
    """The network with the weights of a seed, in evaluation mode. torch's global random state is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ResNet18(widths, classes)
        for part in net.modules():
            _spread(part)
    return net.eval()


def _spread(part: nn.Module) -> None:
    """He's initialization (arXiv:1502.01852), and a head steep enough to give different images different answers."""
    if isinstance(part, nn.Conv2d):
        nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    if isinstance(part, nn.Linear):
        nn.init.normal_(part.weight, std=0.3)
