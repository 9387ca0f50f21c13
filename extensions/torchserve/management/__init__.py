"""TorchServe's management: models described, registered, scaled and unregistered, and the tokens of its callers."""
