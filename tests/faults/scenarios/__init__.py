"""What is done to the system, one module per side of it. Importing this package fills the catalogue."""

from __future__ import annotations

from tests.faults.catalogue import FAULTS, Fault
from tests.faults.scenarios import (
    celery_peer,
    children,
    failover,
    gateway_loss,
    hand_over,
    kill_storm,
    links,
    load,
    meaning,
    runs,
    space,
    store_loss,
    streams,
    webhooks,
    worker_loss,
)

MODULES = (
    children,
    worker_loss,
    kill_storm,
    gateway_loss,
    hand_over,
    store_loss,
    failover,
    streams,
    space,
    links,
    load,
    meaning,
    runs,
    webhooks,
    celery_peer,
)


def every_fault() -> list[Fault]:
    """All of them: penstock's in the order of their numbers, then its peer's."""
    return sorted(FAULTS.values(), key=lambda fault: (fault.system != "penstock", fault.number, fault.name))
