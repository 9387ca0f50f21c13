"""Several stores behind one gateway or worker: which holds which queue, and the stores that send each call to the right one."""
