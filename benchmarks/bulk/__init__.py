"""What `make bench-bulk` measures: runs over files against the same model in a loop, their memory, and their neighbours."""
