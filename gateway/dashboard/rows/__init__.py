"""What the pages show, prepared as text and numbers: rows, groups, small charts. Pure."""
