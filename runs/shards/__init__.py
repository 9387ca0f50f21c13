"""Shards: rows are cut into them, sized, submitted, their ends received, and outputs put back in the order of the input."""
