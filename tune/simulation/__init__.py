"""Predicts what a configuration will do: runs the workers' batching policy on a virtual clock."""
