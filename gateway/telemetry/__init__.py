"""What a gateway reports about itself: metrics and probes."""
