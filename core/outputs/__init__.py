"""What a model answers with beside JSON, as handlers, gateway and client share it. Imports nothing of ours."""
