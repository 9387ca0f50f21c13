"""Inputs that are more than one body: files with their names, and the forms that carry them. Imports core only."""
