"""The parts of TorchServe's management in one gateway process, and how they depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.broker.blobs.space import DiskReserve
from penstock.extensions.torchserve.gateway.parts import TorchServeParts
from penstock.extensions.torchserve.management.actions import ManagementActions
from penstock.extensions.torchserve.management.customized import DescribeRunner
from penstock.extensions.torchserve.management.download import Downloader, DownloadLimits
from penstock.extensions.torchserve.management.listener import ManagementApp
from penstock.extensions.torchserve.management.model_store import ModelStore
from penstock.extensions.torchserve.management.routes import is_served_beside
from penstock.extensions.torchserve.management.service import ModelManagement
from penstock.extensions.torchserve.management.store_keeper import StoreKeeper
from penstock.extensions.torchserve.management.workflows import WorkflowManagement


@dataclass(frozen=True, slots=True)
class Management:
    """`service` is what the gRPC service calls too. `is_beside`: the gateway's own listener serves it."""

    app: ManagementApp
    service: ModelManagement
    keeper: StoreKeeper
    is_beside: bool
    serves: Callable[[str], bool] = is_served_beside


def management_of(parts: TorchServeParts) -> Management:
    options = parts.own
    reserve = DiskReserve(options.model_store, parts.options.reserve_bytes)
    limits = DownloadLimits(options.max_archive_bytes, options.download_timeout_s)
    models = ModelStore(options.model_store, options.allowed_urls, Downloader(limits, reserve))
    service = ModelManagement(
        options,
        store=parts.store,
        registry=parts.registry,
        changes=parts.changes,
        models=models,
        sources=options.sources,
    )
    workflows = WorkflowManagement(options, registry=parts.registry, changes=parts.changes, models=models)
    actions = ManagementActions(
        service,
        workflows=workflows,
        tokens=parts.auth.tokens,
        uploads=parts.uploads,
        health=parts.health,
        describe=DescribeRunner(parts.predict, parts.results, within_s=parts.options.sync_timeout_s),
    )
    app = ManagementApp(
        actions,
        auth=parts.auth,
        audit=parts.audit,
        requests=parts.requests,
        metrics=parts.metrics,
        hosts=options.management_hosts,
        origins=parts.options.cors_origins,
    )
    return Management(app, service, StoreKeeper(models, parts.store), is_beside=not options.is_management_apart)
