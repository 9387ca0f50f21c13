"""The settings: their tables and defaults, where each value comes from, the sentences about faults, and the API keys."""
