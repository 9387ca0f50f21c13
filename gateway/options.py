"""The settings of one gateway process as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.access import Key
from penstock.logs import JobLines
from penstock.model_spec import ModelInfo

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """As `[webhooks]` has them (docs/reference/webhooks.md). `of_models`: the default URL of each model that has one."""

    signing_keys: tuple[str, ...] = field(repr=False)
    urls: tuple[str, ...]
    ca: str = ""
    timeout_s: float = 15.0
    retry_s: tuple[float, ...] = (5.0,)
    circuit_s: tuple[float, float] = (10.0, 300.0)
    max_result_bytes: int = 16 * KIB
    max_undelivered: int = 10_000
    public_url: str = ""
    of_models: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TorchServeOptions:
    """As `[torchserve]` has them (docs/reference/torchserve.md).

    `is_management_apart`: management has an address of its own, and `management_hosts` are the Host names that are accepted
    there (empty: any). `sources`: those that this gateway's settings name, by model and version.
    """

    management_host: str = "127.0.0.1"
    is_management_apart: bool = False
    management_hosts: frozenset[str] = frozenset()
    sources: Mapping[tuple[str, str], str] = field(default_factory=dict)
    model_store: Path | None = None
    model_api: bool = False
    allowed_urls: tuple[str, ...] = ()
    max_archive_bytes: int = 4 * 1024 * MIB
    default_workers: int = 0
    default_response_timeout_s: float = 120.0
    default_startup_timeout_s: float = 120.0
    default_queue_depth: int = 100
    key_path: Path | None = None
    token_lifetime_s: float = 3_600.0
    max_response_bytes: int | None = None
    grpc_inference_port: int = 0
    grpc_management_port: int = 0


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """Sizes are in bytes, durations in seconds.

    `models` are those that this gateway's settings declare; `hosts` the Host names it answers to (empty: any). They are for
    loopback only, against DNS rebinding: elsewhere a rebound page has no key, and names may be many.
    Without `keys`, whoever reaches the gateway may do everything, at `rate_per_s` (0: any rate).
    `metrics`: whether /metrics is served beside the API; `torchserve_metrics`: whether it also has TorchServe's names.
    `torchserve_access_log`: whether each answer is a line of TorchServe's access log.
    `max_requests`, `max_predictions`, `max_streams`, `max_waits`: how many requests of each kind are open at once.
    `log_jobs`: which changes of jobs are logged. `history`: whether the store keeps the history of its models.
    `blob_dir`: the folder whose free disk space /metrics shows.
    `dashboard`: whether the pages are served; their links begin with `root_path`.
    `files_dir`: where uploaded and produced files lie, each kept for `file_ttl_s` unless its uploader says otherwise.
    `cors_origins`: the web origins whose pages may call the API from a browser.
    `max_owner_files`, `max_owner_bytes`, `max_owner_runs`: what one owner may have of files, of bytes in them, and of runs that
    have not ended. `reserve_bytes`: how much of a disk is left to the store.
    `run_roots`: the folders below which runs may read by path. `webhooks` None: none are sent.
    `torchserve` None: its routes are not served.
    """

    models: tuple[ModelInfo, ...] = ()
    hosts: frozenset[str] = frozenset()
    max_json_bytes: int = 4 * MIB
    max_raw_bytes: int = 32 * MIB
    max_json_depth: int = 64
    inline_input_bytes: int = 32 * KIB
    sync_timeout_s: float = 60.0
    heartbeat_s: float = 15.0
    max_requests: int = 2_048
    max_predictions: int = 2_048
    max_streams: int = 2_048
    max_waits: int = 10_000
    max_upload_bytes: int = 256 * MIB
    keys: tuple[Key, ...] = ()
    rate_per_s: float = 0.0
    burst: int = 200
    metrics: bool = True
    log_jobs: JobLines = JobLines.PROBLEMS
    history: bool = True
    torchserve_metrics: bool = False
    torchserve_access_log: bool = False
    blob_dir: Path | None = None
    dashboard: bool = True
    root_path: str = ""
    cors_origins: tuple[str, ...] = ()
    files_dir: Path = Path("files")
    max_file_bytes: int = 200 * MIB
    file_ttl_s: float = 30 * 86_400.0
    max_owner_files: int = 10_000
    max_owner_bytes: int = 20 * 1024 * MIB
    max_owner_runs: int = 100
    reserve_bytes: int = 0
    run_roots: tuple[Path, ...] = ()
    webhooks: WebhookOptions | None = None
    torchserve: TorchServeOptions | None = None
