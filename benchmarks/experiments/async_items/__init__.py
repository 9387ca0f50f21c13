"""An async handler that waits for a service of variable latency: what one process answers, in this tree and in others."""
