"""Inputs of runs: files of rows and folders of files, read forward and resumable. May import core and rows and files."""
