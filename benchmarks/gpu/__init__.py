"""What can only be shown on a GPU: `python -m benchmarks.gpu`."""
