"""Webhooks: events of jobs and runs, kept in an outbox and delivered to callers' URLs."""

from penstock.extension import Extension

extension = Extension("webhooks")
