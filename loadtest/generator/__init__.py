"""Sends HTTP load and records the answers: connections, closed and open loops, arrivals."""
