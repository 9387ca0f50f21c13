"""Load generator, the measured figures of the main path, and the batching simulator; may import anything of ours."""
