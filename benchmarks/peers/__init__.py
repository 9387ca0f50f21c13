"""The same workloads on other model servers and on penstock, one after another on one machine: docs/peers.md.

The folders beside these modules hold a server's definition each and its pinned requirements. They run in environments of their
own and are never imported here.
"""
