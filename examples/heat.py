"""A slow simulation that says how far it is: heat spreads over a plate, step by step.

`penstock up examples/heat.py`, then `penstock call heat '{"steps": 20000}' --async` and `penstock jobs watch JOB`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import penstock


@dataclass
class Plate:
    steps: int = 2_000
    width: int = 200


@penstock.model(max_batch_size=1)
def heat(plate: Plate, context: penstock.Context) -> dict[str, float] | penstock.Failure:
    """How warm the plate is after the given steps: its middle was at 100 degrees, and its edge stays at 0."""
    warmth, middle = np.zeros((plate.width, plate.width)), slice(plate.width // 3, 2 * plate.width // 3)
    warmth[middle, middle] = 100.0
    for step in range(plate.steps):
        if step % 100 == 0:
            if context.cancelled:
                return penstock.Failure("stopped", "cancelled")
            context.progress(step / plate.steps, f"step {step} of {plate.steps}")
        inner = warmth[1:-1, 1:-1]
        inner += 0.2 * (warmth[:-2, 1:-1] + warmth[2:, 1:-1] + warmth[1:-1, :-2] + warmth[1:-1, 2:] - 4 * inner)
    context.progress(1.0, "done")
    return {"warmest": round(float(warmth.max()), 3), "mean": round(float(warmth.mean()), 3)}
