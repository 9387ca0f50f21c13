"""What every gRPC service of a gateway shares: the port, keys and permits, refusals, streams of requests, health (D91)."""
