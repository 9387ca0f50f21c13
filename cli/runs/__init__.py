"""`penstock run`: runs over files, from the command line."""
