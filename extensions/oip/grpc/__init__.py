"""The Open Inference Protocol over gRPC: its messages and methods."""
