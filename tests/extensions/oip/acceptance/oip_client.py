"""What the clients of Triton must see over HTTP and over gRPC alike."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException


def assert_loads(client: Any) -> None:
    """The repository loads a model that there is, and refuses all else."""
    client.load_model("simple")
    with pytest.raises(InferenceServerException, match=r"below worker\.model_dir"):
        client.load_model("simple", config=json.dumps({"version": "2", "source": "/etc/passwd.py"}))
    with pytest.raises(InferenceServerException, match="names one of its versions"):
        client.unload_model("simple")
    with pytest.raises(InferenceServerException, match="no model is named"):
        client.load_model("nobody")


def assert_unserved(client: Any, status: str) -> None:
    """What penstock does not have is refused by its name, with this status."""
    for ask in (
        lambda: client.get_inference_statistics("simple"),
        client.get_trace_settings,
        client.get_log_settings,
        client.get_system_shared_memory_status,
        lambda: client.register_system_shared_memory("a", "/a", 10),
    ):
        with pytest.raises(InferenceServerException, match="penstock does not serve") as refused:
            ask()
        assert refused.value.status() == status
