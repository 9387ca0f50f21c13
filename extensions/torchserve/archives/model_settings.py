"""Translates `model-config.yaml` into settings of a model. Pure. Every key is in the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.extensions.torchserve.archives.parity import Parity, SettingParity, TranslatedSettings
from penstock.model_spec import MAX_BATCH_SIZE

# TorchServe's defaults for every model, which differ from penstock's.
ARCHIVE_DEFAULTS: Mapping[str, Any] = {"max_batch_size": 1, "max_wait_s": 0.1, "max_run_s": 120.0, "request_headers": ("*",)}
_FOR_HANDLER = "the handler reads it from context.model_yaml_config"
_ENGINE = "it schedules the tokens of language models; serve the model with an engine that is made for them"
_SEQUENCES = "the requests of one sequence would have to reach one process in order, which penstock does not promise"
_MICRO = "penstock prepares a batch beside the one that runs; delete the key, and set batchSize"
_FOREVER = "a model that fails is loaded again after 1, 2, 4 ... 60 s for as long as its worker lives"
_PARALLEL = "the model would have to run as several processes at once, started by torchrun"
_HANDLERS = "TorchServe's handlers for it are not here; a handler of your own reads it from context.model_yaml_config"


@dataclass(frozen=True, slots=True)
class _Rule:
    """`read` gives our value, or raises `ValueError` that says what the setting must be."""

    ours: str
    read: Callable[[Any], Any]
    parity: Parity = Parity.HONOURED
    why: str = ""


def model_settings(config: Mapping[str, Any]) -> TranslatedSettings:
    """The settings of `VersionSettings` that a whole model-config.yaml says, and what becomes of each of its keys."""
    values: dict[str, Any] = {}
    report: list[SettingParity] = []
    for key, value in config.items():
        if key in _DEVICE_KEYS:
            continue
        own, one = _translated(key, value)
        values |= own
        report.append(one)
    own, devices = _devices(config)
    return TranslatedSettings(values | own, [*report, *devices])


def refused_settings(archive: str, refused: Sequence[str]) -> str:
    """The message for an archive with settings that penstock can neither serve nor ignore."""
    return f"{archive}: its model-config.yaml asks for what penstock does not do: {'; '.join(refused)}"


def _translated(key: str, value: Any) -> tuple[dict[str, Any], SettingParity]:
    if key in _RULES:
        return _by_rule(key, value, _RULES[key])
    if key in _UNSERVED:
        return {}, _unserved(key, value)
    why = _HANDLERS if key in ("pippy", "deepspeed", "dali") else _FOR_HANDLER
    return {}, SettingParity(key, value, Parity.IGNORED if why is _HANDLERS else Parity.HONOURED, why=why)


def _by_rule(key: str, value: Any, rule: _Rule) -> tuple[dict[str, Any], SettingParity]:
    try:
        ours = rule.read(value)
    except ValueError as fault:
        return {}, SettingParity(key, value, Parity.IGNORED, why=f"it must be {fault}")
    if ours is None:
        # Where the setting changes nothing, nothing is lost.
        parity = Parity.IGNORED if rule.parity is Parity.IGNORED else Parity.HONOURED
        return {}, SettingParity(key, value, parity, why=rule.why if parity is rule.parity else "")
    name, _, option = rule.ours.partition(".")
    own = {name: {option: ours}} if option else {name: ours}
    return own, SettingParity(key, value, rule.parity, f"{rule.ours} = {_written(ours)}", rule.why)


def _unserved(key: str, value: Any) -> SettingParity:
    """A mode that penstock does not have. Where it is switched off, nothing is missing."""
    if value in _SWITCHED_OFF or (key == "parallelLevel" and value == 1):
        return SettingParity(key, value, Parity.HONOURED, why="it is switched off")
    return SettingParity(key, value, Parity.REFUSED, why=_UNSERVED[key])


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number of 1 or more")
    return value


def _batch_size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_BATCH_SIZE:
        raise ValueError(f"a whole number from 1 to {MAX_BATCH_SIZE}")
    return value


def _milliseconds(value: Any) -> float:
    return _number(value) / 1000


def _seconds(value: Any) -> float:
    if not _number(value):
        raise ValueError("a number of seconds above 0")
    return float(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise ValueError("a number of 0 or more")
    return float(value)


def _limit_of_clients(value: Any) -> float | None:
    """0 is TorchServe's word for no limit."""
    return _milliseconds(value) or None


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _ticket(value: Any) -> int | None:
    return 1 if _switch(value) else None


def _nothing(value: Any) -> None:
    _number(value)


_RULES: dict[str, _Rule] = {
    "batchSize": _Rule("max_batch_size", _batch_size),
    "maxBatchDelay": _Rule("max_wait_s", _milliseconds, why="a request goes at once while a process is idle"),
    "responseTimeout": _Rule("max_run_s", _seconds),
    "startupTimeout": _Rule("load_timeout_s", _seconds),
    "clientTimeoutInMills": _Rule(
        "deadline_s", _limit_of_clients, why="what waits longer is answered with 504; TorchServe answers nothing"
    ),
    "maxRetryTimeoutInSec": _Rule("", _nothing, Parity.IGNORED, _FOREVER),
    "jobQueueSize": _Rule("max_queue_depth", _whole),
    "useJobTicket": _Rule(
        "max_queue_depth", _ticket, Parity.CHANGED, "one request may wait where TorchServe refuses all while no process is idle"
    ),
    "useVenv": _Rule("options.use_venv", _switch),
}
_SEQUENCE_KEYS = (
    "sequenceBatching",
    "sequenceMaxIdleMSec",
    "sequenceTimeoutMSec",
    "maxNumSequence",
    "maxSequenceJobQueueSize",
)
_UNSERVED = {
    "micro_batching": _MICRO,
    **dict.fromkeys(("parallelType", "parallelLevel", "torchrun"), _PARALLEL),
    **dict.fromkeys(("continuousBatching", "asyncCommunication"), _ENGINE),
    **dict.fromkeys(_SEQUENCE_KEYS, _SEQUENCES),
}
_SWITCHED_OFF: tuple[Any, ...] = (None, False, 0, "", "none", {})
_DEVICE_KEYS = ("deviceType", "deviceIds", "minWorkers", "maxWorkers")
_ONE_NUMBER = "penstock keeps this number of processes; change it while they run with PUT /models/{model}"


def _devices(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[SettingParity]]:
    """Workers and devices together: what counts processes on the CPU counts devices, or processes of one, on GPUs."""
    asked = {key: config[key] for key in _DEVICE_KEYS if key in config}
    report = list(_device_faults(asked))
    wrong = {one.key for one in report}
    good = {key: value for key, value in asked.items() if key not in wrong}
    values = _placed(good.get("minWorkers", 0), good.get("deviceType", ""), good.get("deviceIds") or [])
    shown = ", ".join(f"{name} = {_written(value)}" for name, value in values.items())
    same = good.get("maxWorkers") == good.get("minWorkers")
    return values, report + [_device_parity(key, value, shown, is_fixed=same) for key, value in good.items()]


def _placed(workers: int, kind: str, ids: list[int]) -> dict[str, Any]:
    count = {"slots": workers} if workers else {}
    if kind.lower() == "cpu":
        return {**count, "device": "cpu"}
    if kind.lower() != "gpu":
        return count
    if len(ids) == 1:
        return {"device": f"cuda:{ids[0]}", **({"slots": 1, "slots_per_device": workers} if workers else {})}
    return {**count, "device": "cuda"}


def _device_parity(key: str, value: Any, shown: str, *, is_fixed: bool) -> SettingParity:
    if key == "maxWorkers" and not is_fixed:
        return SettingParity(key, value, Parity.CHANGED, why=f"TorchServe does not scale by load either; {_ONE_NUMBER}")
    if key == "deviceIds" and len(value) > 1:
        why = "penstock chooses the least used GPUs; name one per version with device"
        return SettingParity(key, value, Parity.CHANGED, shown, why)
    return SettingParity(key, value, Parity.HONOURED, shown)


def _device_faults(asked: Mapping[str, Any]) -> Iterator[SettingParity]:
    for key, value in asked.items():
        try:
            _READERS[key](value)
        except ValueError as fault:
            yield SettingParity(key, value, Parity.IGNORED, why=f"it must be {fault}")
    if "deviceIds" in asked and str(asked.get("deviceType", "")).lower() != "gpu":
        yield SettingParity("deviceIds", asked["deviceIds"], Parity.IGNORED, why="it goes with deviceType: gpu")


def _device_kind(value: Any) -> None:
    if not isinstance(value, str) or value.lower() not in ("cpu", "gpu"):
        raise ValueError("cpu or gpu")


def _ids(value: Any) -> None:
    if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value):
        raise ValueError("a list of the numbers of GPUs")


_READERS: dict[str, Callable[[Any], Any]] = {
    "minWorkers": _whole,
    "maxWorkers": _whole,
    "deviceType": _device_kind,
    "deviceIds": _ids,
}


def _written(value: Any) -> str:
    """As TOML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"
