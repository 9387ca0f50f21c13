"""Who may call what: roles, keys, rates."""
