"""A package for pytest, so that what `conftest.py` shares over this folder ends with the folder, and not with the session."""
