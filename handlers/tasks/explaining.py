"""Explanations of a model's answers with Captum: pixels by integrated gradients, tokens by leaving each out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.distribution import install_hint
from penstock.handlers.contract import NOT_EXPLAINABLE, Failure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# The number of images between a blank image and the image, and how many of them run together.
_STEPS = 15
_STEPS_PER_CALL = 5
_ADVICE = "serve it as .pt2, with float pixels and without quantized layers"
_TEXTS_PER_CALL = 16


def pixel_attributions(
    runtime: Any, feed: Mapping[str, Any], *, read: Callable[[dict[str, Any]], Any], target: int
) -> Array | Failure:
    """How much each value of one image adds to the score of class `target`, compared with an image of the mean colour.

    Integrated gradients (arXiv:1703.01365) need a runtime with gradients. Without one the result is a `Failure`.
    """
    if not hasattr(runtime, "forward"):
        return _refused(f"explanations of images need gradients, and this model runs on {runtime.provider}; {_ADVICE}")
    captum = _captum()
    if isinstance(captum, Failure):
        return captum
    (image,) = runtime.tensors(feed)

    def score(images: Any) -> Any:
        return read(runtime.forward([images])).flatten(1)

    if not score(image.detach().clone().requires_grad_()).requires_grad:
        return _refused(f"explanations of images need gradients, and this kind of model file has none; {_ADVICE}")
    method = captum.IntegratedGradients(score)
    attributions = method.attribute(image, target=target, n_steps=_STEPS, internal_batch_size=_STEPS_PER_CALL)
    array: Array = attributions.detach()[0].float().cpu().numpy()
    return array


def token_attributions(ids: Array, score: Callable[[Array], Array], *, blank: int) -> Array | Failure:
    """How much the score falls when `blank` replaces each token. Works on every runtime, because it needs only outputs."""
    captum = _captum()
    if isinstance(captum, Failure):
        return captum
    torch = import_module("torch")

    def score_rows(rows: Any) -> Any:
        return torch.from_numpy(score(rows.numpy()))

    text = torch.from_numpy(ids[None])
    attributions = captum.FeatureAblation(score_rows).attribute(text, baselines=blank, perturbations_per_eval=_TEXTS_PER_CALL)
    array: Array = attributions[0].numpy()
    return array


def _captum() -> Any:
    try:
        return import_module("captum.attr")
    except ImportError as error:
        return _refused(f"explanations need captum, which cannot be imported ({error}); run: {install_hint('explain')}")


def _refused(why: str) -> Failure:
    return Failure(why, NOT_EXPLAINABLE)
