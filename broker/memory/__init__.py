"""The job store in plain memory, for unit tests and the simulator: it answers as the Redis store does."""
