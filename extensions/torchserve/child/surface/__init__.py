"""What the code of an archive imports as `ts`. Nothing of it is loaded before the code asks for it."""
