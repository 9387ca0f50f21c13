"""Measurements behind single decisions, each a command of its own."""
