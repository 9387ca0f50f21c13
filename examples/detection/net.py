"""A detector in plain torch: a heavy residual backbone of random weights, and a narrow path that really finds coloured discs.

Nothing is trained or downloaded. The backbone costs as much as that of a small detector (some 10 billion multiplications for an
image of 320 x 320) and changes scores and sizes by a hundredth. The colour path finds the discs: it measures how red, green or
blue the surroundings of each cell are, and where in them the colour lies. The answers can therefore be checked against the
drawn discs, which reveals a precision or runtime that computes something else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

NAMES = ("red disc", "green disc", "blue disc")
WIDTHS = (80, 160, 320)
STRIDE = 8
# The Gaussian window in which a cell looks for a colour: its standard deviation and its reach, in cells.
_SIGMA, _REACH = 3.0, 7
# How colourful a pixel must be to count (grey is 0, a pure colour 2); the softmax's steepness and its score for "nothing".
_COLOURFUL, _GAIN, _NOTHING = 0.8, 30.0, 4.5
_NUDGE = 0.01
# Half a disc's width in standard deviations along an axis: 2 for a disc alone; 1.9 fits the drawn sizes, because the formula
# for Gaussians does not undo the window exactly. Then the largest plausible standard deviation, in cells.
_HALF, _MOST_SPREAD = 1.9, 6.0


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


class Backbone(nn.Module):
    """Images to features at a stride of 8: those at 16 are folded in as a feature pyramid does (arXiv:1612.03144), and four
    convolutions follow, as in RetinaNet's heads (arXiv:1708.02002)."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        first, second, third = widths
        stem = nn.Conv2d(3, first, 7, 2, padding=3, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(first), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1))
        self.fine = nn.Sequential(
            Block(first, first, 1), Block(first, first, 1), Block(first, second, 2), Block(second, second, 1)
        )
        self.coarse = nn.Sequential(Block(second, third, 2), Block(third, third, 1))
        self.down = nn.Conv2d(third, second, 1)
        tower: list[nn.Module] = []
        for before in (second, third, third, third):
            tower += [nn.Conv2d(before, third, 3, padding=1), nn.ReLU()]
        self.tower = nn.Sequential(*tower)

    def forward(self, image: Tensor) -> Tensor:
        fine = self.fine(self.stem(image))
        coarse = functional.interpolate(self.down(self.coarse(fine)), scale_factor=2.0, mode="nearest")
        features: Tensor = self.tower(fine + coarse)
        return features


class ColourPath(nn.Module):
    """Per cell: how much of each colour is around it, and the colour's centre and half width, in cells relative to this one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("opponents", torch.full((3, 3, 1, 1), -0.5) + 1.5 * torch.eye(3)[:, :, None, None])
        self.register_buffer("window", _moments())

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        cells = functional.avg_pool2d(torch.relu(functional.conv2d(image, self.opponents) - _COLOURFUL), STRIDE)
        colours = cells / (2.0 - _COLOURFUL)
        moments = functional.conv2d(colours, self.window, padding=_REACH, groups=3).unflatten(1, (3, 5))
        heat = moments[:, :, 0]
        # One box per cell, for the colour that prevails.
        most = torch.softmax(2.0 * _GAIN * heat, dim=1)[:, :, None]
        whole, mean, square = (most * moments).sum(1).split((1, 2, 2), dim=1)
        mean = mean / (whole + 1e-4)
        spread = (square / (whole + 1e-4) - mean * mean).clamp(min=0.05)
        # The window pulls the centre towards its own and narrows the spread; for two Gaussians this undoes both.
        own = 1.0 / (1.0 / spread - 1.0 / _SIGMA**2).clamp(min=1.0 / _MOST_SPREAD**2)
        return heat, mean * own / spread, _HALF * own.sqrt()


def _moments() -> Tensor:
    """Gaussian-weighted sums over a cell's surroundings, per colour: of the colour, and of it times x, y, x² and y²."""
    at = torch.arange(-_REACH, _REACH + 1, dtype=torch.float32)
    y, x = torch.meshgrid(at, at, indexing="ij")
    weight = torch.exp(-(x * x + y * y) / (2.0 * _SIGMA**2))
    weight = weight / weight.sum()
    sums = torch.stack([weight, weight * x, weight * y, weight * x * x, weight * y * y])[:, None]
    return sums.repeat(3, 1, 1, 1)


class Detector(nn.Module):
    """Images float32 [batch, 3, height, width] of -1 to 1, sides multiples of 16, to one candidate per cell of 8 x 8 pixels.

    `pred_boxes` [batch, cells, 4] as centre and size, 0 to 1; `logits` [batch, cells, classes + 1], the last one for "nothing".
    """

    def __init__(self, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        self.backbone = Backbone(widths)
        self.head = nn.Conv2d(widths[-1], len(NAMES) + 2, 1)
        self.colours = ColourPath()

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        nudge = _NUDGE * torch.tanh(self.head(self.backbone(image)))
        heat, offset, half = self.colours(image)
        classes = _GAIN * heat + nudge[:, : len(NAMES)]
        nothing = torch.full_like(classes[:, :1], _NOTHING)
        rows, columns = heat.shape[-2], heat.shape[-1]
        y = torch.arange(rows, device=image.device, dtype=image.dtype)[:, None].expand(rows, columns)
        x = torch.arange(columns, device=image.device, dtype=image.dtype)[None, :].expand(rows, columns)
        middle = torch.stack([x, y])[None] + 0.5 + offset
        sizes = 2.0 * half * (1.0 + nudge[:, len(NAMES) :])
        scale = torch.tensor([columns, rows], device=image.device, dtype=image.dtype)[None, :, None, None]
        boxes = torch.cat([middle / scale, sizes / scale], dim=1)
        planes_by_name = {"pred_boxes": boxes, "logits": torch.cat([classes, nothing], dim=1)}
        return {name: planes.flatten(2).transpose(1, 2) for name, planes in planes_by_name.items()}


def seeded(seed: int = 0, *, widths: Sequence[int] = WIDTHS) -> Detector:
    """The network with the weights of a seed, in evaluation mode. torch's global random state is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Detector(widths)
        for part in net.modules():
            # He's initialization (arXiv:1502.01852).
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return net.eval()
