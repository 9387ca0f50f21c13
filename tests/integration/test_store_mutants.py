"""Every guard in the Lua functions is needed: if one is taken out, a contract test fails, and a random walk finds the mistake.

A mutant that nothing notices fails here; so does a mutant whose text is no longer in the library.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis
from hypothesis import Phase, settings

from penstock.broker.store.library import library
from penstock.broker.store.sync import RedisStore
from tests.contract.dumps import RedisDump
from tests.contract.invariants import check_invariants
from tests.contract.model_queue import ModelQueue
from tests.integration.mutant import Mutant
from tests.integration.store_machine import StoreMachine, walk
from tests.integration.store_mutants import MUTANTS
from tests.integration.test_store_machine import WALKS

# Every dump reads past the keys of other modules.
pytestmark = pytest.mark.usefixtures("redis_url")

FOUND_BY_WALKING = ("no fence",)
WALKED = [mutant for mutant in MUTANTS if mutant.name in FOUND_BY_WALKING]
UNTIL_FOUND = settings(WALKS, max_examples=1_000, phases=[Phase.generate])

Opener = Callable[[Mutant], Callable[[], RedisStore]]


def named(mutant: Mutant) -> str:
    return mutant.name


@pytest.fixture
def opener(redis_url: str) -> Iterator[Opener]:
    """Yield a function that opens stores on a library with the mistake in it; the libraries are removed afterwards."""
    sources = set()

    def opening(mutant: Mutant) -> Callable[[], RedisStore]:
        source = mutant.source()
        sources.add(source)
        return lambda: RedisStore(redis_url, source=source)

    yield opening
    with redis.Redis.from_url(redis_url) as client:
        for source in sources:
            client.function_delete(f"penstock_{library(source)[0]}")


def check_on(store: RedisStore, url: str, check: Callable[[ModelQueue], None]) -> None:
    """Run one contract test on this store, as the fixture of the contract tests does."""
    model = f"m{uuid.uuid4().hex[:12]}"
    with closing(store), redis.Redis.from_url(url) as client:
        queue = ModelQueue(store, model, RedisDump(client, model).dump)
        check(queue)
        check_invariants(queue.dump())


@pytest.mark.parametrize("mutant", MUTANTS, ids=named)
def test_the_contract_notices(mutant: Mutant, opener: Opener, redis_url: str) -> None:
    check_on(RedisStore(redis_url), redis_url, mutant.notices)
    # This call is outside the block, because a mutant that is no longer part of the library must not count as noticed.
    opening = opener(mutant)
    with pytest.raises((AssertionError, ValueError)):
        check_on(opening(), redis_url, mutant.notices)


@pytest.mark.parametrize("mutant", WALKED, ids=named)
def test_a_random_walk_notices(mutant: Mutant, opener: Opener, redis_url: str) -> None:
    opening = opener(mutant)
    with pytest.raises(AssertionError):
        walk(lambda: StoreMachine(redis_url, opening), UNTIL_FOUND)
