from __future__ import annotations

from penstock.gateway.registry import merged
from penstock.model_spec import BatchPolicy, Limits, ModelInfo, VersionInfo

DECLARED = ModelInfo("m", limits=Limits(max_queue_depth=7), versions={"1": None})
LOADED = VersionInfo(description="squares")


def test_limits_are_the_gateways_own_and_versions_what_the_workers_loaded() -> None:
    stored = ModelInfo("m", limits=Limits(max_queue_depth=9), versions={"1": LOADED, "2": LOADED})
    found = merged(DECLARED, stored)
    assert (found.limits.max_queue_depth, found.versions) == (7, {"1": LOADED, "2": LOADED})


def test_the_batch_policy_is_the_one_in_force_once_a_worker_has_loaded_the_model() -> None:
    # A handler that declares max_batch_size = 4 was listed with the default of 8, by `penstock models` and by `batch 4/8`.
    policy = BatchPolicy(max_batch_size=4)
    assert merged(DECLARED, ModelInfo("m", policy=policy, versions={"1": LOADED})).policy == policy
    assert merged(DECLARED, ModelInfo("m", policy=policy, versions={"1": None})).policy == DECLARED.policy


def test_a_model_known_to_one_side_only_is_taken_as_it_is() -> None:
    assert merged(DECLARED, None) == merged(None, DECLARED) == DECLARED
