"""How much each value of an input adds to the score of a class, where captum is not installed (arXiv:1703.01365)."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class GradientPath:
    """`captum.attr.IntegratedGradients` with the arguments that handlers use."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def attribute(self, inputs: Any, baselines: Any = 0, target: Any = 0, *, n_steps: int = 50) -> Any:
        """A tensor like `inputs`: gradients of the score on the way from `baselines`, by Gauss and Legendre's rule.

        One step runs at a time, so that memory does not grow with `n_steps`.
        """
        import numpy as np
        import torch

        points, weights = np.polynomial.legendre.leggauss(n_steps)
        way, total = inputs - baselines, torch.zeros_like(inputs)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            place = (baselines + float(point) * way).detach().requires_grad_()
            score = self._model(place).flatten(1)[:, target].sum()
            total += float(weight) * torch.autograd.grad(score, place)[0]
        return way * total


def integrated_gradients(model: Any) -> Any:
    """Captum's, if it is installed, else ours."""
    try:
        return import_module("captum.attr").IntegratedGradients(model)
    except ImportError:
        return GradientPath(model)
