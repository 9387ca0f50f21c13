"""What happens to jobs, told as it happens: followed, encoded, and sent."""
