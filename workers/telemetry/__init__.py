"""What a worker reports about its batches: metrics, gauges, logs, spans, task events for Flower."""
