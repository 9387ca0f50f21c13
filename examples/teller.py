"""A model that streams: a network of numpy that learned which letter follows which, one letter per step.

`penstock up examples/teller.py`, then `penstock call teller '"A job "'`. Ctrl-C leaves the job; `penstock jobs cancel` ends it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock import Context, Handler

TEXT = "a job is stored, a worker takes the job, the worker runs the model, and the model tells the job how it ends. " * 4
LETTERS = sorted(set(TEXT))
SEEN, STEPS = 4, 80


class Teller(Handler):
    """Continues a text."""

    def initialize(self, context: Context, /) -> None:
        near = np.array([self._seen(TEXT[at - SEEN : at]) for at in range(SEEN, len(TEXT))])
        follows = np.eye(len(LETTERS))[[LETTERS.index(letter) for letter in TEXT[SEEN:]]]
        self.weights = np.linalg.lstsq(near, follows, rcond=None)[0]  # one layer, trained in a moment

    def _seen(self, text: str) -> Any:
        """The last letters as a row of ones and zeros; letters that were never seen are zeros."""
        return np.array([[letter == known for known in LETTERS] for letter in text[-SEEN:].rjust(SEEN)], float).ravel()

    def inference(self, batch: list[str], /) -> Any:
        texts = [text.lower() for text in batch]
        for _ in range(STEPS):
            scores = np.stack([self._seen(text) for text in texts]) @ self.weights  # all items at once
            chunks: list[str] = [LETTERS[best] for best in scores.argmax(axis=1)]
            texts = [text + chunk for text, chunk in zip(texts, chunks, strict=True)]
            yield chunks
