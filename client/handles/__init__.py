"""One job or run as its submitter holds it, and what comes of it bit by bit."""
