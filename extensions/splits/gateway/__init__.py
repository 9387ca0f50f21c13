"""Splits as a gateway serves them: which version a request gets, what a canary does next, the routes. Loaded only if needed."""
