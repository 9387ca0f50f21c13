"""Offline runs over files: read, cut into shards, resume, publish."""
