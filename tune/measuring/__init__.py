"""Batch times, memory and answers of real children, measured without a queue."""
