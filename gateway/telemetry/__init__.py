"""What a gateway reports: metrics, probes, traces, log lines."""
