"""What happened to models lately: noted by every gateway that runs, and read for routes and charts."""
