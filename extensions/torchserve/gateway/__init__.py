"""TorchServe's protocol as a translation; loaded only if it is served."""
