"""Commands about runs over files: `run`."""
