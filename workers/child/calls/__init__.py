"""A batch as calls of the model: what items cost, which of them go together, and what calls of each size take."""
