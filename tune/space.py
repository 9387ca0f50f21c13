"""The configurations to choose from: the values that the user names, and defaults that suit the model and the machine. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import BadRequest
from penstock.model_spec import ModelSpec
from penstock.tune.result import Choice, EngineSettings

_WORDS: dict[str, tuple[str, ...]] = {
    "runtime": ("auto", "torch", "onnx", "tensorrt"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "compile": ("off", "default", "reduce-overhead", "max-autotune"),
    "pinning": ("cores", "none"),
    "placement": ("dedicated", "shared"),
}
DIMENSIONS = (
    "batch_size",
    "max_wait_s",
    "slots",
    "threads",
    "pinning",
    "device",
    "runtime",
    "precision",
    "compile",
    "placement",
)
# Names of other tools, and of penstock.toml, for the same dimensions.
_ALIASES = {
    "max_batch_size": "batch_size",
    "processors": "device",
    "processor": "device",
    "devices": "device",
    "batch_delay": "max_wait_ms",
    "max_batch_delay": "max_wait_ms",
    "wait": "max_wait_s",
    "slots_per_device": "slots",
    "batch_sizes": "batch_size",
}
_PROCESSORS = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}
_TORCH_FILES = (".pt2", ".pt", ".pth", ".ts", ".safetensors")
_LARGEST_BATCH = 32
_WAITS_S = (0.0, 0.005, 0.010)
_MOST_SLOTS_PER_GPU = 4
_HINT = "write --space batch_size=1,2,4,8 --space slots=1,2; the names are " + ", ".join(DIMENSIONS)


@dataclass(frozen=True, slots=True)
class TuneMachine:
    """The cores and GPUs that the model may use."""

    cores: int
    gpus: int = 0


def read_pairs(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """`["batch_size=1,2", "slots=1"]` as lists of text, for `checked`. Raises `BadRequest`."""
    space: dict[str, list[Any]] = {}
    for pair in pairs:
        name, equals, values = pair.partition("=")
        if not equals or not values.strip():
            raise BadRequest(f"--space {pair!r} names no values", hint=_HINT)
        space.setdefault(name.strip(), []).extend(value.strip() for value in values.split(",") if value.strip())
    return space


def checked(named: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Any, ...]]:
    """Dimensions under penstock's names, with values of the right type, each once. Raises `BadRequest`."""
    space: dict[str, tuple[Any, ...]] = {}
    for given, values in named.items():
        name = _ALIASES.get(given, given)
        read = tuple(_value(name, given, value) for value in values)
        name = "max_wait_s" if name == "max_wait_ms" else name
        if not read:
            raise BadRequest(f"{given} has no values", hint=_HINT)
        space[name] = tuple(dict.fromkeys((*space.get(name, ()), *read)))
    return space


def _value(name: str, given: str, value: Any) -> Any:
    text = str(value).strip()
    try:
        if name in ("batch_size", "slots"):
            return _at_least_one(int(text))
        if name == "threads":
            return None if text in ("auto", "None", "0") else _at_least_one(int(text))
        if name in ("max_wait_s", "max_wait_ms"):
            return _not_negative(float(text)) * (1e-3 if name == "max_wait_ms" else 1.0)
    except ValueError as fault:
        raise BadRequest(f"{given}: {text!r} is not a value of this dimension", hint=_HINT) from fault
    if name == "device":
        return _PROCESSORS.get(text.lower(), text)
    if name not in _WORDS:
        raise BadRequest(f"there is no dimension {given!r}", hint=_HINT)
    if text not in _WORDS[name]:
        raise BadRequest(f"{given}: {text!r} is none of {', '.join(_WORDS[name])}", hint=_HINT)
    return text


def _at_least_one(value: int) -> int:
    if value < 1:
        raise ValueError
    return value


def _not_negative(value: float) -> float:
    if not 0.0 <= value < 3600.0:
        raise ValueError
    return value


def default_space(spec: ModelSpec, machine: TuneMachine, *, largest_batch: int | None = None) -> dict[str, tuple[Any, ...]]:
    """The dimensions and values to search if the user names none. `largest_batch`: the largest that the handler takes."""
    largest = largest_batch or max(_LARGEST_BATCH, spec.policy.max_batch_size)
    on_gpu = spec.device != "cpu"
    cores = [1 << power for power in range(machine.cores.bit_length()) if 1 << power <= machine.cores]
    if machine.cores not in cores:
        cores.append(machine.cores)
    return {
        "batch_size": tuple(1 << power for power in range(largest.bit_length()) if 1 << power <= largest),
        "max_wait_s": tuple(sorted({*_WAITS_S, spec.policy.max_wait_s})),
        "slots": tuple(range(1, _MOST_SLOTS_PER_GPU + 1)) if on_gpu else tuple(cores),
        "threads": (spec.threads,) if on_gpu else tuple(cores),
        "pinning": ("cores",),
        "device": (spec.device,),
        "runtime": (spec.runtime.runtime,),
        "precision": _precisions(spec),
        "compile": _compiles(spec),
        "placement": (spec.placement,),
    }


def _is_torch_file(spec: ModelSpec) -> bool:
    return Path(spec.source.partition(":")[0]).suffix in _TORCH_FILES


def _precisions(spec: ModelSpec) -> tuple[str, ...]:
    """Only the declared one, except for files of torch: a handler in Python decides itself what a precision means, and an ONNX
    file fixes its own."""
    mine = spec.runtime.precision
    if not _is_torch_file(spec):
        return (mine,)
    others = ("fp32", "bf16") if spec.device == "cpu" else ("fp32", "tf32", "bf16", "fp16")
    return tuple(dict.fromkeys((mine, *others)))


def _compiles(spec: ModelSpec) -> tuple[str, ...]:
    mine = spec.runtime.compile
    if not _is_torch_file(spec) or spec.device == "cpu":
        # Not every machine has a compiler for the CPU; a user who has one can name the dimension.
        return (mine,)
    return tuple(dict.fromkeys((mine, "off", "default")))


def choices(space: Mapping[str, Sequence[Any]], machine: TuneMachine) -> list[Choice]:
    """All configurations that differ in their effect, in the order of the space."""
    return list(dict.fromkeys(_all(space, machine)))


def _all(space: Mapping[str, Sequence[Any]], machine: TuneMachine) -> Iterator[Choice]:
    for values in itertools.product(*(space[name] for name in DIMENSIONS)):
        point = dict(zip(DIMENSIONS, values, strict=True))
        engine = EngineSettings(*(point[name] for name in ("device", "runtime", "precision", "compile", "threads", "pinning")))
        if engine.device == "cpu" and (engine.threads or 1) * point["slots"] > max(machine.cores, point["slots"]):
            # With more threads than cores, all threads would wait for each other.
            continue
        # A lone slot never waits for a fuller batch, because no other slot could use the time; nor does a batch of one.
        waits = point["slots"] > 1 and point["batch_size"] > 1
        wait_s = point["max_wait_s"] if waits else min(space["max_wait_s"])
        yield Choice(engine, point["batch_size"], wait_s, point["slots"], point["placement"])
