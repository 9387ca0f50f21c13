"""The Open Inference Protocol: named tensors as the input of one job, over HTTP and gRPC."""
