"""`penstock torchserve` and `penstock import torchserve`: a deployment of TorchServe, its store and its settings, as ours."""
