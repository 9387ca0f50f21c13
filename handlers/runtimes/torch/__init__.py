"""Model files on PyTorch, by kind of file and by way to run them. Imports core, `handlers.handler` and `handlers.runtimes`.

torch is imported by `library` alone, and only when a model asks for it: 2 s and 200 MB.
"""
