"""TorchServe's protocol, archives, management, settings and command line."""
