"""Commands about jobs: `call`, `jobs`."""
