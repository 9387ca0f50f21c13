"""One slot, in the supervisor: the loop that claims, hands over and settles, and everything that it decides with."""
