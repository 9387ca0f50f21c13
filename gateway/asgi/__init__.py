"""HTTP itself: connections, bodies, headers, problems. Independent of models and jobs."""
