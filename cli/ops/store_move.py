"""`penstock store move`: a model's new jobs go to another store, and what it has elsewhere drains."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from penstock.broker.store.audit import Act, end_act, note_act
from penstock.broker.stores.model_queues import MoveStep
from penstock.broker.stores.moves import StoreMove
from penstock.broker.stores.places import StoreMap, StorePlace, places_of
from penstock.broker.stores.thread_stores import RedisStores
from penstock.cli.display import print_faint
from penstock.cli.serve.start_watch import check_login, check_store
from penstock.errors import ConfigError, PenstockError, StoreUnavailable
from penstock.running_stack import running_stack
from penstock.settings.store_url import MAIN_STORE
from penstock.settings.tables import Settings
from penstock.words import plural

_LOOK_EVERY_S = 0.5
Say = Callable[[str, str, int | None], None]


def move(settings: Settings, model: str, to: str, *, is_waiting: bool, say: Say) -> None:
    """`say` gets each step, a sentence on it, and how many jobs are left. Returns once none is, or at once after the last step
    if nobody waits.
    """
    places = places_of(StorePlace(_main_url(settings)), settings.stores)
    if not places.others:
        raise ConfigError("the settings name one store only", hint="add [stores.NAME] with its url to penstock.toml")
    stores = StoreMap(places).open(name="penstock-move")
    assert isinstance(stores, RedisStores)
    with closing(stores):
        moving = StoreMove(stores, places, model, to)
        moving.check()
        _check_target(settings, to)
        act = Act("move store", f"{getpass.getuser()}@{socket.gethostname()}", on={"model": model}, said={"to": to})
        with noted(stores, act):
            while (step := moving.next_step()) is not MoveStep.DRAIN:
                say(step.value, _SAID[step].format(model=model, to=to), None)
                moving.take(step)
                if step is MoveStep.PREPARE:
                    # Workers read the registry with every beat.
                    time.sleep(settings.worker.beat_s + 1.0)
        # From here on new jobs go there, and what is left ends by itself.
        _drain(moving, model, to, is_waiting=is_waiting, say=say)


@contextmanager
def noted(stores: RedisStores, act: Act) -> Iterator[None]:
    """The act in the audit log. If a store goes away meanwhile, its outcome stays unknown."""
    number = stores.run(note_act(act))
    try:
        yield
    except StoreUnavailable:
        raise
    except PenstockError as error:
        stores.run(end_act(number, act, f"failed: {error.kind}"))
        raise
    stores.run(end_act(number, act, "done"))


_SAID = {
    MoveStep.PREPARE: "preparing queues for {model} in {to}, and waiting until every worker knows of them",
    MoveStep.SWITCH: "closing the queues that {model} had, and sending its new jobs to {to}",
}


def _drain(moving: StoreMove, model: str, to: str, *, is_waiting: bool, say: Say) -> None:
    said = -1
    while left := _left(moving):
        if left != said:
            said = left
            say("drain", f"new jobs of {model} go to {to}; {plural(left, 'job')} still to end where they are", left)
        if not is_waiting:
            return
        time.sleep(_LOOK_EVERY_S)
    say("done", f"{model} has moved to {to}; results of earlier jobs stay where they are until they expire", 0)


def _left(moving: StoreMove) -> int:
    """A store that is away for a moment ends no move."""
    while True:
        try:
            return moving.left()
        except StoreUnavailable as away:
            print_faint(f"{away.message}; trying again")
            time.sleep(_LOOK_EVERY_S * 4)


def _main_url(settings: Settings) -> str:
    stack = None if settings.store.url else running_stack(settings.store.state_dir)
    url = settings.store.url or (stack.redis_url if stack else None)
    if not url:
        raise ConfigError("no Redis is configured, and no `penstock up` runs here", hint="set PENSTOCK_REDIS_URL")
    return url


def _check_target(settings: Settings, to: str) -> None:
    """Raises `StartError` for a store that lacks what the settings require of it."""
    if to != MAIN_STORE:
        check_login(settings.stores[to].url, to)
        check_store(settings.stores[to].url, settings.stores[to].require, print_faint, to)
    elif settings.store.url:
        check_store(settings.store.url, settings.store.require, print_faint)
