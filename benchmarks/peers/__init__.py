"""The same workloads on other model servers and on penstock, one after another on one machine: docs/why/peers.md.

Each folder beside these modules holds the definition of one server and its pinned requirements. Definitions run in environments
of their own and are never imported here.
"""
