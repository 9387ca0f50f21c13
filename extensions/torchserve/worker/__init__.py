"""What a worker does for archives: fetches, packages, and TorchServe's names of series."""
