"""The content of pages as text and numbers: rows, groups, small charts. Pure."""
