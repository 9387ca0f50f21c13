"""TorchServe's settings: its table, what archives say, workflows."""
