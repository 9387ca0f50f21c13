"""FastAPI in front of Celery: sends a task and waits for its result on a thread, as most who combine the two do."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import current_default_thread_limiter
from fastapi import FastAPI
from tasks import predict


@asynccontextmanager
async def enough_threads(app: FastAPI):
    # 40 by default, fewer than the callers.
    current_default_thread_limiter().total_tokens = 128
    yield


app = FastAPI(lifespan=enough_threads)


@app.post("/predict")
def answer(item: dict[str, Any]) -> dict[str, Any]:
    return predict.delay(item).get(timeout=60)
