"""Keys of config.properties that have no setting of ours, each with its reason; and those that concern the models."""

from __future__ import annotations

_THREADS = "penstock's gateway is one process with an event loop; set gateway.processes for more"
_KEYSTORE = "penstock speaks no TLS; put a proxy with the certificate before it, as docs/production/deploy.md says"
_GRPC_AGES = "penstock keeps gRPC connections while they are used"
_PORTS = "penstock and its child processes talk over sockets without ports"
_INTEL = "it is an extension of TorchServe's launcher; a handler may use it in its initialize"
_SEQUENCE = "sequences of requests that stick to one process are not served"
_CORS = "penstock answers a preflight with the methods and headers of its own API"
_LOGS = "penstock writes its log to stdout; `log` in penstock.toml says how much"
_JAVA = "there is no Java here"

IGNORED: dict[str, str] = {
    **dict.fromkeys(("number_of_netty_threads", "netty_client_threads"), _THREADS),
    **dict.fromkeys(("prefer_direct_buffer", "use_native_io", "io_ratio", "vmargs", "model_server_home"), _JAVA),
    **dict.fromkeys(("async_logging", "log_config", "cpp_log_config"), _LOGS),
    **dict.fromkeys(("keystore", "keystore_pass", "keystore_type", "private_key_file", "certificate_file"), _KEYSTORE),
    **dict.fromkeys(("enable_grpc_ssl",), "set gateway.grpc_certificate and gateway.grpc_key"),
    **dict.fromkeys(
        (f"grpc_{door}_max_connection_age{end}_ms" for door in ("inference", "management") for end in ("", "_grace")),
        _GRPC_AGES,
    ),
    **dict.fromkeys(("grpc_inference_address", "grpc_management_address"), "gRPC is at the hosts of the two HTTP listeners"),
    **dict.fromkeys(("initial_worker_port", "initial_distribution_port"), _PORTS),
    **dict.fromkeys(("ipex_enable", "ipex_gpu_enable", "cpu_launcher_args"), _INTEL),
    **dict.fromkeys((f"ts_request_sequence_{part}" for part in ("id", "start", "end")), _SEQUENCE),
    **dict.fromkeys(("header_key_sequence_id", "header_key_sequence_start", "header_key_sequence_end"), _SEQUENCE),
    **dict.fromkeys(("cors_allowed_methods", "cors_allowed_headers"), _CORS),
    "plugins_path": "plugins are Java archives; there is no Java here",
    "snapshot_store": "what management changed is in the store, and each start continues with it",
    "python": "models run with the Python that runs penstock",
    "metric_time_interval": "the host's metrics are read when they are asked for",
    "system_metrics_cmd": "the host's metrics are read by penstock itself",
    "disable_system_metrics": "the host's metrics are read only when they are asked for",
    "unregister_model_timeout": "unregistering waits for the batches that run, each within its responseTimeout",
    "blacklist_env_vars": "a model's process sees a list of harmless variables and those below [models.NAME.env], nothing else",
    "use_env_allowed_urls": "set allowed_urls",
}
# The keys about models, which `startup_models` reads.
OF_MODELS = frozenset(
    {
        "load_models",
        "models",
        "model_snapshot",
        "default_workers_per_model",
        "default_response_timeout",
        "default_startup_timeout",
        "default_service_handler",
        "job_queue_size",
        "number_of_gpu",
        "service_envelope",
        "decode_input_request",
        "limit_max_image_pixels",
        "install_py_dep_per_model",
        "metrics_config",
    }
)
