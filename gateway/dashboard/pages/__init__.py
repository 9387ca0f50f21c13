"""The pages: each a set of routes that reads, fills a template, and acts on forms."""
