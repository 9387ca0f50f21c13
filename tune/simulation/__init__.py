"""Predicts the figures of a configuration: runs the workers' batching policy on a virtual clock."""
