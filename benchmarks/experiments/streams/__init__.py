"""Streams under load: time to the first chunk, chunks per second and CPU per chunk, beside LitServe on the same model."""
