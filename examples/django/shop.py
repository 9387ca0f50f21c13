"""A Django application on Celery 5.5 whose task calls a model. The client stands beside both and brings neither.

pip install penstock-inference django 'celery==5.5.*'
python examples/django/shop.py    # beside `penstock up examples/square.py`, which has an environment of its own
"""

from __future__ import annotations

from typing import Any

import celery
import django
from celery.contrib.testing.worker import start_worker
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.test import Client as Browser
from django.urls import path

from penstock import Client

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="of an example")
# A shop has a broker of its own. This one stays in memory, so that the example needs no server but penstock's.
tasks = celery.Celery("shop", broker="memory://", backend="cache+memory://")


@tasks.task
def quote(x: int) -> Any:
    """Call the model through the gateway that PENSTOCK_URL names."""
    with Client() as client:
        return client.submit("square", {"x": x}).result(timeout_s=30)


def show_quote(request: HttpRequest) -> JsonResponse:
    return JsonResponse(quote.delay(int(request.GET["x"])).get(timeout=40))


urlpatterns = [path("quote", show_quote)]


def main() -> None:
    django.setup()
    with start_worker(tasks, perform_ping_check=False):
        shown = Browser().get("/quote", {"x": "4"}).json()
    print(f"Django {django.get_version()}, Celery {celery.__version__}: {shown}")


if __name__ == "__main__":
    main()
