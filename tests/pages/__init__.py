"""Pages of docs/reference whose tables are written from the code: `python -m tests.pages`, or `make reference`."""
