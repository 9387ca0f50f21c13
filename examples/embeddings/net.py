"""all-MiniLM-L6-v2 in plain torch: the same network as in graph.py, for the runtimes that take torch's files."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

LAYERS = 6
HEADS = 12
WIDTH = 384
WORDS = 30_522
POSITIONS = 512
EPSILON = 1e-12


class Layer(nn.Module):
    """Attention and two dense layers, each with a shortcut and a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mixed = nn.Linear(WIDTH, WIDTH)
        self.mixed_norm = nn.LayerNorm(WIDTH, EPSILON)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.narrow_norm = nn.LayerNorm(WIDTH, EPSILON)

    def forward(self, state: Tensor, bias: Tensor) -> Tensor:
        heads = [part(state).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], attn_mask=bias)
        state = self.mixed_norm(self.mixed(mixed.transpose(1, 2).flatten(2)) + state)
        return self.narrow_norm(self.narrow(functional.gelu(self.wide(state))) + state)


class MiniLM(nn.Module):
    """`ids` and `mask`, int64 [batch, tokens], to `sentence`, float32 [batch, 384], each of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.kinds = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, EPSILON)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        state = self.norm(self.words(ids) + self.positions(places) + self.kinds.weight[0])
        there = mask.to(state.dtype)
        bias = ((there - 1) * 1e9)[:, None, None, :]
        for layer in self.layers:
            state = layer(state, bias)
        total = (state * there[:, :, None]).sum(dim=1)
        return functional.normalize(total / there.sum(dim=1, keepdim=True), dim=1)


# Our names -> those of the weights file, per layer and for the rest.
_LAYER = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mixed": "attention.output.dense",
    "mixed_norm": "attention.output.LayerNorm",
    "wide": "intermediate.dense",
    "narrow": "output.dense",
    "narrow_norm": "output.LayerNorm",
}
_REST = {
    "words": "word_embeddings",
    "positions": "position_embeddings",
    "kinds": "token_type_embeddings",
    "norm": "LayerNorm",
}


def trained(weights_file: Path) -> MiniLM:
    """The network with the weights of the file, in evaluation mode."""
    given = load_file(weights_file)
    names = {ours: f"embeddings.{theirs}" for ours, theirs in _REST.items()}
    for at in range(LAYERS):
        names |= {f"layers.{at}.{ours}": f"encoder.layer.{at}.{theirs}" for ours, theirs in _LAYER.items()}
    net = MiniLM()
    wanted = [name.rpartition(".") for name in net.state_dict()]
    net.load_state_dict({f"{part}.{kind}": given[f"{names[part]}.{kind}"] for part, _, kind in wanted})
    return net.eval()
