"""Who may call what: keys, roles, rates."""
