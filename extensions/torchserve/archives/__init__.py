"""Model archives of TorchServe (`.mar`, `.tar.gz`, folders): recognised, checked, read and unpacked. Runs no model code."""
