"""Commands that start processes: `up`, `gateway`, `worker`, `runner`; and their settings and models."""
