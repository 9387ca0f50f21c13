"""The result of a search in words, tables and an HTML page."""
