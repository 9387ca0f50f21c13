"""One slot, in the supervisor: its loop claims batches, hands them to the child and settles them. Imports no fleet, no child."""
