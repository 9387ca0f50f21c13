"""Cog's predictors as handlers: what their code imports as `cog`, and how a predictor becomes a handler (D84)."""
