"""The models that a gateway serves: registry, queues, admission, rollouts, profiles."""
