"""Events of jobs: followed in the store, encoded, and sent."""
