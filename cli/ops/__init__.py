"""Commands for whoever operates penstock: `doctor`, `config`, `keys`, `secrets`, `store`, `probe`, `flower`."""
