"""The Open Inference Protocol over gRPC: the same requests as over HTTP, as messages instead of JSON (D91)."""
