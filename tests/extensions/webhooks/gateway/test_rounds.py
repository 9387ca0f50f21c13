"""When the outboxes of a store are asked, and when new ones are looked for."""

from __future__ import annotations

from typing import cast

from penstock.extensions.webhooks.gateway.deliverer import ASK_S, OutboxRound
from penstock.extensions.webhooks.store.outbox import AsyncOutbox


def asked(at: float) -> OutboxRound:
    """A round that asked all its outboxes at that moment, and found none."""
    round = OutboxRound()
    round.ask_all_if_due(at)
    round.is_seeking = False
    round.changed.clear()
    return round


def test_the_hint_of_a_model_that_nobody_knows_yet_has_the_outboxes_found_anew() -> None:
    """Regression: the first event of a new model waited until all outboxes were asked, up to five seconds."""
    round = asked(100.0)
    round.hear("ps:{new}:")
    assert (round.is_seeking, round.changed.is_set()) == (True, True)


def test_a_model_that_is_not_found_is_sought_once_until_all_are_asked() -> None:
    round = asked(100.0)
    for found in (True, False):
        round.hear("ps:{nobody}:")
        assert round.is_seeking is found
        round.is_seeking = False
        round.ask_all_if_due(100.0 + ASK_S / 2)
    round.ask_all_if_due(100.0 + ASK_S)
    round.is_seeking = False
    round.hear("ps:{nobody}:")
    assert round.is_seeking


def test_hints_of_ever_new_names_are_bounded() -> None:
    round = asked(100.0)
    for number in range(2_000):
        round.hear(f"ps:{{m{number}}}:")
    round.is_seeking = False
    round.hear("ps:{one-more}:")
    assert not round.is_seeking


def test_an_outbox_that_is_found_is_asked_at_once() -> None:
    round = asked(100.0)
    round.add("ps:{new}:", cast("AsyncOutbox", None), "new")
    assert (round.ask_at, round.changed.is_set()) == ({"ps:{new}:": 0.0}, True)
