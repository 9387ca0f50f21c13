"""What a search found, in words, tables and an HTML page."""
