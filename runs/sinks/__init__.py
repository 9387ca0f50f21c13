"""Outputs of runs: built in a folder beside their final name, put in place by rename. May import core and rows and files."""
