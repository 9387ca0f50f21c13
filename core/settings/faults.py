"""Faults in settings as sentences: the setting, what is wrong with its value, where the value came from, a suggestion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# Names of our settings in other model servers and in earlier releases, in lower case and without underscores, so a suggestion
# can name ours.
_ELSEWHERE = {
    "batchsize": "max_batch_size",
    "maxbatchdelay": "max_wait_s (in seconds, not milliseconds)",
    "maxqueuedelaymicroseconds": "max_wait_s (in seconds, not microseconds)",
    "batchtimeout": "max_wait_s",
    "workers": "slots",
    "minworkers": "min_slots",
    "maxworkers": "max_slots",
    "concurrency": "slots",
    "handler": "source",
    "path": "source",
    "file": "source",
    "responsetimeout": "max_run_s",
    "timeout": "max_run_s",
    "jobqueuesize": "max_queue_depth",
    "redisurl": "url",
    "maxgib": "max_bytes (in bytes, not GiB)",
}

# Settings that went (D138), and what holds instead. Tables of extensions have theirs as `gone`.
_GONE = {
    "gateway.head_timeout_s": "the head of a request has 10 s, and no longer than gateway.body_timeout_s",
    "gateway.max_connections_per_address": "it is a quarter of gateway.max_connections",
    "gateway.max_json_depth": "it is 64",
    "models.max_retry_delay_s": "a retry waits for a minute at most, or for retry_delay_s if that is longer",
    "models.profile_every": "one of 100 batches of each slot is recorded",
    "models_cache.install_limit_s": "pip has 15 minutes for an archive",
    "models_cache.install_max_gib": "it is a fifth of models_cache.max_bytes",
    "models_cache.stall_s": "it is 30 s",
    "runs.max_batch_lines": "it is 50,000",
    "runs.max_owner_files": "it is 10,000; runs.max_owner_bytes limits what the files take",
    "worker.profile_dir": "recordings lie in the folder profiles of store.state_dir",
    "worker.sweep_s": "it is a quarter of worker.beat_s",
}

# pydantic's own messages for these faults speak of parsing and of strings, which a user who edits TOML need not know.
_PLAIN = {
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_parsing": "must be a number",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must be some text",
}


def explain(
    invalid: ValidationError,
    settings: type[BaseModel],
    origins: Mapping[str, str],
    *,
    at: str = "",
    beside: Sequence[str] = (),
) -> list[str]:
    """Write one sentence per fault: `models.square.max_batch_size: must be at least 1, not 0 (from /etc/penstock.toml)`.

    `at`: the name of the table that `settings` checks, if it is not the whole. `beside`: further tables of the whole.
    """
    return [_sentence(fault, settings, origins, at, beside) for fault in invalid.errors(include_url=False)]


def take_unknown_models(tree: Mapping[str, Any], origins: Mapping[str, str]) -> list[str]:
    """Remove the models that only single variables name, none of them with a source, and return a sentence for each.

    The name in such a variable is likely misspelt.
    """
    models = tree.get("models")
    names = list(models) if isinstance(models, dict) else []
    said = {name: {leaf: words for leaf, words in origins.items() if leaf.startswith(f"models.{name}.")} for name in names}
    unknown = [name for name in names if said[name] and all(_is_variable(*leaf) for leaf in said[name].items())]
    faults = []
    for name in unknown:
        near = get_close_matches(name, [known for known in names if known not in unknown], n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        faults.append(f"models.{name}: no such model is declared{meant} (from {next(iter(said[name].values()))})")
        del tree["models"][name]
    return faults


def _is_variable(leaf: str, origin: str) -> bool:
    return origin.startswith("env PENSTOCK_MODELS__") and not leaf.endswith(".source")


def _sentence(
    fault: ErrorDetails, settings: type[BaseModel], origins: Mapping[str, str], at: str, beside: Sequence[str]
) -> str:
    path = [str(part) for part in fault["loc"] if part != "[key]"]
    whole = [at, *path] if at else path
    where = ".".join(whole)
    origin = origins.get(where) or next((words for leaf, words in origins.items() if leaf.startswith(f"{where}.")), "")
    source = f" (from {origin})" if origin and origin != "default" else ""
    known = [*_keys_beside(path, settings), *(beside if len(path) == 1 else ())]
    gone = _GONE | {f"{at}.{name}": instead for name, instead in getattr(settings, "gone", {}).items()}
    return f"{where}: {_complaint(fault, whole, known, gone)}{source}"


def _complaint(fault: ErrorDetails, path: Sequence[str], known: Sequence[str], gone: Mapping[str, str]) -> str:
    if fault["type"] == "extra_forbidden":
        instead = gone.get(f"{path[0]}.{path[-1]}")
        return f"there is no such setting any more: {instead}" if instead else f"no such setting{_suggestion(path[-1], known)}"
    if fault["type"] == "missing":
        return "missing"
    text = _PLAIN.get(fault["type"]) or _plainly(fault["msg"])
    # A URL may hold a password, so the message leaves it out.
    return text if fault["type"] == "value_error" or path[-1].endswith("url") else f"{text}, not {_short(fault['input'])}"


def _plainly(text: str) -> str:
    text = text.removeprefix("Value error, ").replace("Input should be", "must be")
    return text.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, dict) else "a table"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _suggestion(key: str, known: Sequence[str]) -> str:
    elsewhere = _ELSEWHERE.get(key.lower().replace("_", "").replace("-", ""))
    if elsewhere and elsewhere.split()[0] in known:
        return f"; did you mean {elsewhere}?"
    near = get_close_matches(key.lower(), known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(known)}"


def _keys_beside(path: Sequence[str], settings: type[BaseModel]) -> list[str]:
    """Return the fields of the table to which the last key of `path` belongs."""
    root = settings.model_fields.get("root")
    table = (_table_of(root.annotation) or settings) if root else settings
    for key in path[:-1]:
        field = table.model_fields.get(key)
        # A key without a field is a name that the user chose (a model, a version); `table` is already the type below that name.
        table = _table_of(field.annotation) or table if field else table
    return list(table.model_fields)


def _table_of(annotation: Any) -> type[BaseModel] | None:
    """Return the table type of a field that is a table or a mapping of names to tables; None for other fields."""
    candidates = [annotation, *get_args(annotation)]
    # What extensions add fields to is annotated with where the whole is.
    wholes = [note.of() for part in candidates for note in getattr(part, "__metadata__", ()) if hasattr(note, "of")]
    candidates = [*wholes, *candidates]
    return next((kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
