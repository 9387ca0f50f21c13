"""How many slots a worker process has of each version whose slots follow the work, and which model gives way to another."""
