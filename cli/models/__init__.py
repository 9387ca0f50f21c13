"""Commands about models: `models`, `workers`, `devices`, `new`."""
