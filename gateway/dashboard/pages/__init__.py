"""The pages: each is a set of routes that read data, fill a template, and act on forms."""
