"""`penstock torchserve`: a deployment of TorchServe, its store and its settings, as ours; `--write` keeps the settings."""
