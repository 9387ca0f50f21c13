"""Slots that follow the work: how many slots a version has, and which model gives way to another."""

from penstock.extension import Extension

extension = Extension(
    "autoscaling",
    version_settings="penstock.extensions.autoscaling.settings:ScalingFields",
    worker="penstock.extensions.autoscaling.worker.part:worker_part",
)
