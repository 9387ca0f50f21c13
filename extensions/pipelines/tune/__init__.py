"""`penstock tune` for a pipeline: the settings of all its models together, within a bound on the whole."""
