"""TorchServe's two gRPC services: the same predictions and the same management as over HTTP, in its messages."""
