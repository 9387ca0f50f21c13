"""Inputs of bulk runs: files of rows and folders of files, read forward and resumable. Imports core and `penstock.runs`."""
