"""Measurements behind single decisions, each with a command of its own."""
