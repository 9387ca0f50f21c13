"""Outputs of bulk runs, built beside their name and put there by rename. Imports core and `penstock.runs`."""
