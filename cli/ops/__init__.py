"""Commands for operators of penstock: `doctor`, `config`, `keys`, `store`, `probe`, `flower`."""
