"""Everything that can be set: what there is, where a value comes from, what is wrong with one, and who may call."""
