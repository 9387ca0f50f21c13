"""An OpenAI batch as a run: its lines as rows, its answers as files."""
