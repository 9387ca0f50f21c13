"""Real models over HTTP, compared with the same models in a loop: `python -m benchmarks.models`."""
