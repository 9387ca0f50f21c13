"""The call that a handler runs: what its items say before their end, and items as coroutines."""
