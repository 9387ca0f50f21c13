"""History: what happened to models lately, as the store keeps it."""
