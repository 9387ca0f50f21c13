"""One suite for all doors, the ways by which a request becomes a job: README.md says how a new door joins."""
