"""Model files on PyTorch, by kind of file and by the way to run it. Imports core, `handlers.contract`, `handlers.runtimes`.

Only `library` imports torch, once a model needs it: the import takes 2 s and 200 MB.
"""
