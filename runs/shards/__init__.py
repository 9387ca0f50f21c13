"""Rows as shards: cut, sized, queued, heard of, and put back in the order of the input."""
