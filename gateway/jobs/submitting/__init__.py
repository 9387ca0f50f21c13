"""From an HTTP request to stored jobs: read and check options and input, admit, store."""
