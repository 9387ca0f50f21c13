"""The models that a gateway knows: their registry, queues, admission, rollouts and profiles."""
