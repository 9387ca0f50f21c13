"""What a supervisor and its child share: the frames between them and a page of shared memory."""
