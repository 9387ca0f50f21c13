"""The result of a load test as a table, a CSV row and an HTML page."""
