"""Every class of `penstock.errors` is brought about at every door by a test of this folder, or it says here why none can be."""

from __future__ import annotations

from collections.abc import Mapping

from penstock import errors
from penstock.errors import PenstockError
from tests.doors.http_door import PROBLEMS

# The kind of refusal that stands for the class in the tables of the doors.
BROUGHT_ABOUT: Mapping[str, str] = {
    "BadRequest": "unreadable",
    "InvalidInput": "misfit",
    "TooLarge": "too_large",
    "UnsupportedMedia": "media",
    "NotFound": "unknown_model",
    "UnknownModel": "unknown_model",
    "UnknownVersion": "unknown_version",
    "KeyReused": "key_reused",
    "Unauthorized": "unauthorized",
    "WrongRole": "wrong_role",
    "Overloaded": "overloaded",
    "RateLimited": "rate_limited",
    "QuotaSpent": "quota_spent",
    "StorageFull": "storage_full",
    "StoreUnavailable": "store_unavailable",
    "NoWorker": "no_worker",
    "HandlerError": "failed:handler_error",
    "HandlerTimeout": "failed:timeout",
    "HandlerLoadError": "failed:load_failed",
    "InputUrlFailed": "failed:input_url_failed",
}
ELSEWHERE: Mapping[str, str] = {
    "PenstockError": "the base of all",
    "CallerError": "a base, which nothing raises",
    "CapacityError": "a base, which nothing raises",
    "MalformedId": "a submit names no job; tests/acceptance/test_gateway_refusals.py",
    "BadParameter": "a BadRequest that names a member; tests/extensions/openai/acceptance/test_openai_files.py",
    "Gone": "a result that was read too late; tests/acceptance/test_gateway_results.py",
    "Conflict": "a state that forbids an act; tests/acceptance/test_replay.py",
    "ConfigError": "a fault of settings, at the start; tests/acceptance/test_start_refusals.py",
    "DeadlineUnlikely": "an Overloaded by learned times; tests/unit/broker/test_backlog.py",
    "HandlerContractError": "a HandlerError of an output that is none; tests/acceptance/test_failure_codes.py",
    "BadArchive": "a HandlerLoadError of an archive; tests/extensions/torchserve/acceptance/test_torchserve_registering.py",
    "DiskFull": "a HandlerLoadError of the worker's disk; tests/integration/test_archive_cache.py",
    "InternalError": "a bug, which no caller can bring about; tests/unit/gateway/asgi/test_problems.py",
}


def test_every_class_of_error_is_brought_about_or_is_explained() -> None:
    classes = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, PenstockError)}
    assert classes == BROUGHT_ABOUT.keys() | ELSEWHERE.keys()
    assert not BROUGHT_ABOUT.keys() & ELSEWHERE.keys()
    assert set(BROUGHT_ABOUT.values()) <= PROBLEMS.keys()
