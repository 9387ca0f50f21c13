"""A batch as calls of the model: the cost of items, which items share a call, and how long calls of each size take."""
