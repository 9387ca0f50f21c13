"""The models' cache on this machine: one entry per model and revision, its locks, and the room that it may take."""
