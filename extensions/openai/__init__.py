"""OpenAI's protocol: files, batches and embeddings, as translations onto jobs and runs."""

from penstock.extension import Extension

extension = Extension("openai", gateway="penstock.extensions.openai.gateway.batches:gateway")
