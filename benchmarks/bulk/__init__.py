"""`make bench-bulk`: runs over files against the same model in a loop, their memory, and online traffic beside them."""
