"""The extensions that penstock ships: one folder per capability, each found by its entry point."""
