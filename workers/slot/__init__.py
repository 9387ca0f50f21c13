"""One slot, in the supervisor: its loop claims batches, hands them over and settles them. Imports neither fleet nor child."""
