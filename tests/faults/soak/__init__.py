"""The soak: load, runs, cancels and kills for many minutes, while everything that could grow is measured."""
