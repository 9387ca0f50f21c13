"""Why a model answers as it does, by Captum: pixels by integrated gradients, tokens by leaving each out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.handlers.contract import NOT_EXPLAINABLE, Failure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# Points on the way from a blank image to the image, as TorchServe has them, and how many run together.
_STEPS = 15
_STEPS_PER_CALL = 5
_CURE = "serve it as .pt2, with pixels that are float and layers that are not quantized"
_TEXTS_PER_CALL = 16


def pixel_attributions(
    runtime: Any, feed: Mapping[str, Any], *, read: Callable[[dict[str, Any]], Any], target: int
) -> Array | Failure:
    """How much each value of one image adds to the score of class `target`, against an image of nothing but the mean colour.

    Integrated gradients (arXiv:1703.01365), so only a runtime with gradients will do; else a `Failure`.
    """
    if not hasattr(runtime, "forward"):
        return _refused(f"explanations of images need gradients, and this model runs on {runtime.provider}; {_CURE}")
    captum = _captum()
    if isinstance(captum, Failure):
        return captum
    (image,) = runtime.tensors(feed)

    def score(images: Any) -> Any:
        return read(runtime.forward([images])).flatten(1)

    if not score(image.detach().clone().requires_grad_()).requires_grad:
        return _refused(f"explanations of images need gradients, and this kind of model file has none; {_CURE}")
    method = captum.IntegratedGradients(score)
    found = method.attribute(image, target=target, n_steps=_STEPS, internal_batch_size=_STEPS_PER_CALL)
    array: Array = found.detach()[0].float().cpu().numpy()
    return array


def token_attributions(ids: Array, score: Callable[[Array], Array], *, blank: int) -> Array | Failure:
    """How much the score falls when each token is put out by `blank`: works on every runtime, as only answers are needed."""
    captum = _captum()
    if isinstance(captum, Failure):
        return captum
    torch = import_module("torch")

    def scored(rows: Any) -> Any:
        return torch.from_numpy(score(rows.numpy()))

    text = torch.from_numpy(ids[None])
    found = captum.FeatureAblation(scored).attribute(text, baselines=blank, perturbations_per_eval=_TEXTS_PER_CALL)
    array: Array = found[0].numpy()
    return array


def _captum() -> Any:
    try:
        return import_module("captum.attr")
    except ImportError as error:
        return _refused(f"explanations need captum, which cannot be imported ({error}); run: pip install 'penstock[explain]'")


def _refused(why: str) -> Failure:
    return Failure(why, NOT_EXPLAINABLE)
