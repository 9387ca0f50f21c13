"""Commands that start processes: `up`, `gateway`, `worker`, `runner`."""
