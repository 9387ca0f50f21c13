"""HTTP in, HTTP out: checks requests, stores them as jobs, answers.

May import core, broker and client; never handlers or workers: it names models and never loads their code.
"""
