"""A slot's child process as its supervisor sees it: its environment, its life, its batches, and what it left behind."""
