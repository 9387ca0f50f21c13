"""Runs over files as HTTP offers them: made, watched, cancelled."""
