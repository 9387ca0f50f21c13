"""Measurements of this repository: main path, models, runs, GPUs, other servers. Not in the wheel, imported by nobody."""
