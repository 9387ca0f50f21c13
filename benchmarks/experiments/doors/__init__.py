"""The doors of the gateway side by side: tensors over our own route, over REST and over gRPC of the Open Inference Protocol."""
