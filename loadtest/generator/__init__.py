"""Sends HTTP load and notes what comes back: connections, closed and open loops, arrivals."""
