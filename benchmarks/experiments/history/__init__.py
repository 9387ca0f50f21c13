"""What the history of models costs: measured beside a stack that keeps none."""
