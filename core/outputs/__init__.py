"""Outputs of models other than JSON, as handlers, gateway and client share them. Imports nothing of ours."""
