"""Links to stores that are more than one server."""
