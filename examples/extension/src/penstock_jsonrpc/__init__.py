"""JSON-RPC 2.0: calls of models at POST /rpc, alone or in batches."""

from penstock.extension import Extension, Panel, Verb

# Texts, so that this module imports nothing: each process loads the parts that it needs.
extension = Extension(
    "jsonrpc",
    settings={"jsonrpc": "penstock_jsonrpc.settings:JsonRpcSettings"},
    gateway="penstock_jsonrpc.part:gateway",
    functions="penstock_jsonrpc:functions",
    verbs={"rpc": Verb("penstock_jsonrpc.cli:app", "Make one JSON-RPC call.", Panel.USE, asks_gateway=True)},
)
