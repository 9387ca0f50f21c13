"""TorchServe's archives as models: their handlers run unchanged."""
