"""OpenAI's protocol: files, batches and embeddings, as translations onto jobs and runs."""

from penstock.extension import Extension

# The word that stands in the record of a batch.
RUN_KIND = "openai"

extension = Extension(
    "openai",
    gateway="penstock.extensions.openai.gateway.batches:gateway",
    problems={"not_an_embedding": "The model gave no vector"},
    problem_pages="penstock.extensions.openai.gateway.embeddings:EXPLANATIONS",
    run_kinds={RUN_KIND: "penstock.extensions.openai.runs.run:kind"},
)
