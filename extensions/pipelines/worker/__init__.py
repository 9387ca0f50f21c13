"""Drives jobs of pipelines in the supervisor: submits their stages as jobs, waits for them, and passes on what they give."""
