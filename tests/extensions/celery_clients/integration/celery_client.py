"""A stock Celery client in a process of its own: this file knows nothing of penstock, and says so. Run as a program.

Each line of its input is a JSON object `{"run": code}`, whose variable `found` is printed as JSON; `app` is the client's app.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from celery import Celery, chain, chord, group, signature


def main(url: str) -> None:
    app = Celery("shop", broker=url, backend=url)
    # The two lines that a user's app needs.
    app.conf.task_routes = {"penstock.*": {"queue": "penstock"}}
    app.conf.result_extended = True
    known: dict[str, Any] = {
        "app": app,
        "Celery": Celery,
        "chain": chain,
        "chord": chord,
        "group": group,
        "signature": signature,
    }
    for line in sys.stdin:
        try:
            exec(json.loads(line)["run"], known)
            answer = {"found": known.pop("found", None)}
        except Exception as error:  # noqa: BLE001 - every error is told to the test
            answer = {"error": type(error).__name__, "text": str(error), "module": type(error).__module__}
        assert not any(name.partition(".")[0] == "penstock" for name in sys.modules)
        print(json.dumps(answer, default=repr), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
