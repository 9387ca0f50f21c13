"""`penstock tune`: searches a model's settings for the most throughput within a latency goal. May import all but cli."""
