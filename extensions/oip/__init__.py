"""The Open Inference Protocol: named tensors as the input of one job, over HTTP and gRPC."""

from penstock.extension import Extension

extension = Extension("oip", gateway="penstock.extensions.oip.gateway.served:gateway")
