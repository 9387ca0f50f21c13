"""What a gateway reports about itself: metrics, probes and traces."""
