"""Every figure of the main path in one run: `python -m benchmarks.main_path`."""
