"""Two trees beside each other on one store: `make compat` (D144)."""
