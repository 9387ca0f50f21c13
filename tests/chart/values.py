"""Values files for the chart: one deployment each."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]
SECRETS: Values = {name: {"existing": f"penstock-{name}"} for name in ("store", "admin", "gateway", "worker", "scaler")}
PROMETHEUS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]

DEFAULT: Values = {"secrets": SECRETS}
# The contents of the Secrets are given, the store is a pair behind sentinels, payloads are objects.
EXTERNAL: Values = {
    "secrets": {
        "admin": {"url": "redis://admin:a@store:6379/0"},
        "gateway": {"url": "redis+sentinel://gateway:b@s1:26379,s2:26379/main/0", "keys": "[[keys]]\n"},
        "worker": {"url": "redis+sentinel://worker:c@s1:26379,s2:26379/main/0"},
    },
    "store": {"enabled": False, "durability": "replicated", "ports": [6379, 26379], "networks": ["10.0.0.0/8"]},
    "blobs": {"kind": "bucket", "url": "s3://payloads/penstock", "secret": "bucket"},
    "gateway": {
        "replicas": 3,
        "proxies": ["10.1.0.0/16"],
        "ingress": {"enabled": True, "className": "nginx", "host": "models.example", "tlsSecret": "tls"},
    },
    "runner": {"enabled": False},
}
SCALE_TO_ZERO: Values = {
    "secrets": SECRETS,
    "workerDefaults": {"deletionCost": True, "graceSeconds": 120, "autoscaling": {"enabled": True, "min": 0, "max": 4}},
    "blobs": {"kind": "none"},
}
GROUPS: Values = {
    "secrets": SECRETS,
    "image": {"repository": "registry.example/models", "tag": "7", "pullSecrets": [{"name": "registry"}]},
    "settings": {"toml": '[models.text-a]\nsource = "/models/text.py:A"\n[models."v1.5"]\nsource = "/models/v.py:V"\n'},
    "workers": {
        "default": None,
        "cpu": {"models": ["text-*", "v1.5"], "autoscaling": {"enabled": True, "min": 2}},
        "gpu": {
            "models": ["big"],
            "replicas": 2,
            "resources": {"limits": {"cpu": "4", "memory": "24Gi", "nvidia.com/gpu": 1}},
            "loadSeconds": 600,
            "nodeSelector": {"accelerator": "h200"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "env": {"PENSTOCK_LOG__JOBS": "off"},
        },
    },
    "autoscaling": {"source": "prometheus", "prometheusUrl": "http://prometheus.monitoring:9090"},
    "networkPolicy": {"gatewayFrom": PROMETHEUS, "metricsFrom": PROMETHEUS, "egress": [{"ports": [{"port": 443}]}]},
    "monitoring": {name: {"enabled": True, "labels": {"release": "p"}} for name in ("serviceMonitor", "rules", "dashboards")},
}
ALL = {"default": DEFAULT, "external": EXTERNAL, "scale-to-zero": SCALE_TO_ZERO, "groups": GROUPS}

# Values that must be refused, with a part of what is said.
BAD: dict[str, tuple[Values, str]] = {
    "nothing": ({}, "secrets.admin.url is empty: name a Secret of yours in secrets.admin.existing"),
    "a typing error": ({"gateway": {"replica": 3}}, "at '/gateway': additional properties 'replica' not allowed"),
    "text for a number": ({"gateway": {"replicas": "3"}}, "at '/gateway/replicas': got string, want integer"),
    "an unknown store's promise": ({"store": {"require": "fsnyc"}}, "at '/store/require': value must be one of"),
    "no group": ({"workers": {"default": None}}, "at '/workers': minProperties"),
    "a group's name": ({"workers": {"GPU_1": {}}}, "invalid propertyName 'GPU_1'"),
    "no limit of memory": ({"runner": {"resources": {"limits": {"memory": None}}}}, "missing property 'memory'"),
    "a bucket without a place": ({"blobs": {"kind": "bucket"}}, "at '/blobs/url'"),
    "a replica that is not there": ({"store": {"durability": "replicated"}}, "needs a store with replicas of your own"),
    "a budget that no drain passes": ({"gateway": {"replicas": 1}}, "no node with a gateway could ever be drained"),
    "less than least": (
        {"workers": {"default": {"autoscaling": {"enabled": True, "min": 5, "max": 2}}}},
        "min (5) is more than max (2)",
    ),
    "metrics that nobody may read": (
        {"monitoring": {"serviceMonitor": {"enabled": True}}},
        "networkPolicy.metricsFrom lets nobody",
    ),
    "no prometheus": (
        {"workers": {"default": {"autoscaling": {"enabled": True}}}, "autoscaling": {"source": "prometheus"}},
        "autoscaling.prometheusUrl is empty",
    ),
    "a host of an ingress": ({"gateway": {"ingress": {"enabled": True}}}, "gateway.ingress.host is empty"),
}


def cases() -> dict[str, Values]:
    """What is rendered, by name."""
    found = {name: {"values": values, "upgrade": False} for name, values in ALL.items()}
    found["upgrade"] = {"values": DEFAULT, "upgrade": True}
    bad = {name: values if name == "nothing" else {"secrets": SECRETS} | values for name, (values, _) in BAD.items()}
    return found | {name: {"values": values, "upgrade": False} for name, values in bad.items()}
