"""The settings: their tables and defaults, the source of each value, the sentences about faults, and the API keys."""
