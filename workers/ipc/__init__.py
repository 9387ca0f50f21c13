"""All that a supervisor and its child share: the frames between them and a page of memory. Imports neither side."""
