"""Shards of runs in the model's process: cut into micro-batches, sized, run, and put back together."""
