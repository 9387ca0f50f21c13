"""A package for pytest: what `conftest.py` shares over this folder ends with the folder, and else with the session."""
