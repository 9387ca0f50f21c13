"""Handles on jobs and runs, their streams, and the client's groups of operators' calls."""
