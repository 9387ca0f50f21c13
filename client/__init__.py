"""The Python client: submit, wait, result, cancel. Imports no server library. May import core only."""
