"""Commands that measure: `bench`, `tune`."""
