"""Tracing: the spans of submits and batches, sent with OpenTelemetry where its variables ask for them."""

from penstock.extension import Extension

extension = Extension(
    "tracing",
    jobs="penstock.extensions.tracing.gateway:jobs_part",
    worker="penstock.extensions.tracing.worker:worker_part",
)
