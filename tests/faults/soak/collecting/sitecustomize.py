"""Every process of the soak loads this at its start: the collector runs often enough that no sample shows what it would free.

CPython keeps up to 2,000 freed tuples of each length up to 20, which is 4 MiB per process, until its next full collection. A
process of ours hardly ever needs one, so these tuples fill up over the first half an hour and look like a leak.
"""

import gc
import threading
import time

_EVERY_S = 1.0


def _collect() -> None:
    while True:
        time.sleep(_EVERY_S)
        gc.collect()


threading.Thread(target=_collect, name="soak-collector", daemon=True).start()
