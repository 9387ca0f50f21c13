"""A pose network in plain torch: a heavy residual backbone of random weights, and a narrow path that really finds the joints.

Nothing is trained or downloaded. The backbone is the detector's (examples/detection) and costs as much as that of a small
pose network; it changes how sure the network is by a hundredth. The colour path knows each joint by its colour, so the answers
can be checked against the drawn joints.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from drawings import JOINTS
from net import WIDTHS, Backbone
from torch import Tensor, nn
from torch.nn import functional

# Pixels of the window that the network looks at, and of one cell of its heatmaps.
SIDE, STRIDE = 256, 4
# How near a pixel's colour must be to a joint's to count at all; colours are -1 to 1 per channel.
_NEAR = 0.45
_NUDGE = 0.01


class Pose(nn.Module):
    """Windows float32 [batch, 3, 256, 256] of -1 to 1, and `place` [batch, 3]: where each lies in its picture, as the x and y
    of its corner and its side, in pixels. To `joints` [batch, joints, 3]: x and y in pixels of the picture, and how much of the
    joint's colour was seen, 0 to 1.
    """

    def __init__(self, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        self.backbone = Backbone(widths)
        self.head = nn.Conv2d(widths[-1], len(JOINTS), 1)
        colours = torch.tensor(list(JOINTS.values()), dtype=torch.float32) / 127.5 - 1.0
        self.register_buffer("colours", colours[None, :, :, None, None])

    def forward(self, image: Tensor, place: Tensor) -> dict[str, Tensor]:
        nudge = functional.interpolate(torch.tanh(self.head(self.backbone(image))), scale_factor=2.0, mode="nearest")
        distance = (image[:, None] - self.colours).abs().amax(dim=2)
        seen = functional.avg_pool2d(torch.relu(1.0 - distance / _NEAR), STRIDE) * (1.0 + _NUDGE * nudge)
        # A lone pixel of the right colour is noise; a dot fills cells.
        heat = seen * seen
        cells = SIDE // STRIDE
        at = (torch.arange(cells, device=image.device, dtype=image.dtype) + 0.5) / cells
        whole = heat.sum(dim=(2, 3)) + 1e-4
        x = (heat.sum(dim=2) * at).sum(dim=2) / whole
        y = (heat.sum(dim=3) * at).sum(dim=2) / whole
        corner, side = place[:, None, :2], place[:, None, 2:]
        middle = torch.stack([x, y], dim=2) * side + corner
        return {"joints": torch.cat([middle, heat.amax(dim=(2, 3))[:, :, None]], dim=2)}


def seeded(seed: int = 1, *, widths: Sequence[int] = WIDTHS) -> Pose:
    """The network with the weights of a seed, in evaluation mode. torch's global random state is left unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Pose(widths)
        for part in net.modules():
            # He's initialization (arXiv:1502.01852).
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return net.eval()
