"""HTTP itself: connections, bodies, headers, problems. Knows nothing of models and jobs."""
