"""Real models behind the whole way, beside the same model in a loop: `python -m benchmarks.models`."""
