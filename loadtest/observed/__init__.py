"""What is seen of the server under load: its processes, its own figures, the cost per request."""
