"""Named arrays as inputs and outputs of a job, and the files of numpy's that hold one (D83)."""
