"""Replicate's protocol and Cog's container contract, and Cog's predictors as handlers."""
