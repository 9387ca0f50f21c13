"""Observes the server under load: its processes, its own figures, the cost per request, and the machine."""
