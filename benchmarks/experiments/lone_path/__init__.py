"""What a lone request waits for, step by step: stamps of named functions in every process, and the report on them."""
