"""OpenAI's protocol, translated: embeddings are jobs, batches are runs (D41)."""
