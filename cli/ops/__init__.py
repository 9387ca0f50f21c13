"""Commands for operators of penstock: `doctor`, `config`, `keys`, `secrets`, `store`, `probe`, `flower`."""
