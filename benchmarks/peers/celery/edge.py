"""FastAPI in front of Celery: sends a task and waits for its result in a thread, which is the usual combination."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from tasks import predict


@asynccontextmanager
async def enough_threads(app: FastAPI):
    # The default of 40 threads is lower than the number of callers.
    current_default_thread_limiter().total_tokens = 128
    yield


app = FastAPI(lifespan=enough_threads)


@app.post("/predict")
def answer(item: dict[str, Any]) -> dict[str, Any]:
    return predict.delay(item).get(timeout=60)
