"""What a worker reports about its batches: metrics, gauges, logs, task events for Flower."""
