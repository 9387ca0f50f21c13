"""TorchServe's protocol, archives, management, settings and command line."""

from penstock.extension import Extension

extension = Extension("torchserve")
