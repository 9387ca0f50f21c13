"""Commands that start processes: `up`, `gateway`, `worker`, `runner`; and the settings and models that these are given."""
