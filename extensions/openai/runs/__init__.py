"""OpenAI batches as runs over files."""
