"""OpenAI's protocol as a translation: embeddings, files, batches."""
