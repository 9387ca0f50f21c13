"""Runs over files, over HTTP: create, list, read and cancel them."""
