"""The shared parts of all gRPC services of a gateway: port, keys and permits, refusals, streams, health (D91)."""
