"""The `penstock` command: one verb per need, each loaded when it is called. May import everything."""
