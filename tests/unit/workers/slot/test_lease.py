from __future__ import annotations

from penstock.broker.records import Message, Wake
from penstock.workers.slot.sources import Lease


class Listener:
    closed = False

    def fileno(self) -> int:
        return 7

    def read(self) -> list[Message]:
        return [Wake()]

    def close(self) -> None:
        self.closed = True


def lease(listeners: dict[str, Listener], *, lease_s: float = 15.0) -> Lease:
    return Lease("host-1-abc.0", lease_s=lease_s, listen=lambda name: listeners.setdefault(name, Listener()))


def test_a_slot_listens_under_the_name_it_holds_jobs_by() -> None:
    listeners: dict[str, Listener] = {}
    slot = lease(listeners)
    assert slot.open() == 7
    assert list(listeners) == [slot.name] == ["host-1-abc.0.1"]
    assert slot.read() == [Wake()]


def test_a_new_name_gives_up_the_old_one() -> None:
    listeners: dict[str, Listener] = {}
    slot = lease(listeners)
    slot.open()
    slot.renew()
    assert listeners["host-1-abc.0.1"].closed
    assert slot.name == "host-1-abc.0.2"
    assert not slot.is_listening
    assert slot.read() == []


def test_a_lease_lapses_two_seconds_before_the_store_would_end_it() -> None:
    slot = lease({})
    slot.confirm(100.0)
    assert not slot.has_lapsed(112.9)
    assert slot.has_lapsed(113.1)


def test_a_later_confirmation_is_not_undone_by_an_earlier_one() -> None:
    slot = lease({})
    slot.confirm(100.0)
    slot.confirm(90.0)
    assert not slot.has_lapsed(112.0)
